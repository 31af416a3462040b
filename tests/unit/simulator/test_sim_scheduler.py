"""The scheduler on a virtual clock: what comes out must be what was measured, and nothing may be lost or unfair."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from engine_sim.clock import VirtualEngine
from engine_sim.patch import RUNTIME_DIRECTORY, Patched, Unpatched, load_runtime
from engine_sim.scheduler import Hooks, Job, Kind, Limits, Scheduler
from sglang_operator.simulate.curves.acceptance import AcceptanceTable
from sglang_operator.simulate.curves.curve import Mode
from sglang_operator.simulate.curves.families import curve_by_name

LIMITS = Limits(max_running=256, max_total_tokens=1_000_000, chunked_prefill_tokens=8192)


def scheduler(
    curve: str = "mid", hooks: Hooks | None = None, limits: Limits = LIMITS, accept: float = 2.4
) -> Scheduler:
    return Scheduler(
        limits=limits,
        curve=curve_by_name(curve),
        acceptance=AcceptanceTable(accept, 4, seed=1),
        hooks=hooks or Unpatched(Mode.ON),
    )


def closed_loop(made: Scheduler, concurrency: int, seconds: float, settle_seconds: float = 5.0) -> float:
    """Output tokens per second with `concurrency` requests of 128 in and 160 out under way."""
    engine = VirtualEngine(made, on_finished=lambda _: engine.arrive(128, 160))
    for index in range(concurrency):
        engine.arrive(128, 160, at_seconds=index * 0.01)
    engine.run_until(settle_seconds)
    before = engine.tokens
    engine.run_until(settle_seconds + seconds)
    return (engine.tokens - before) / seconds


# End-to-end output tokens per second as measured, at 1, 32 and 128 concurrent requests.
@pytest.mark.parametrize(
    ("backend", "mode", "rates"),
    [
        ("triton", Mode.NONE, (203, 5082, 12708)),
        ("triton", Mode.ON, (332, 5239, 7262)),
        ("triton", Mode.OFF, (168, 2689, 4187)),
        ("flashinfer", Mode.ON, (273, 6390, 10842)),
        ("flashinfer", Mode.OFF, (138, 3625, 8974)),
        ("fa3", Mode.NONE, (205, 5202, 12658)),
        ("fa3", Mode.ON, (363, 8176, 13269)),
        ("fa3", Mode.OFF, (167, 4506, 10750)),
    ],
)
def test_end_to_end_rates_are_the_measured_ones(backend: str, mode: Mode, rates: tuple[float, ...]) -> None:
    for concurrency, rate in zip((1, 32, 128), rates, strict=True):
        simulated = closed_loop(scheduler(backend, Unpatched(mode)), concurrency, seconds=8)
        assert simulated == pytest.approx(rate, rel=0.08), concurrency


def test_time_runs_much_faster_than_in_reality() -> None:
    start = time.process_time()
    closed_loop(scheduler("mid"), 64, seconds=300)
    assert 305 / (time.process_time() - start) > 100


def test_the_same_seed_gives_the_same_run() -> None:
    assert closed_loop(scheduler(), 16, seconds=20) == closed_loop(scheduler(), 16, seconds=20)


def test_the_rest_queue_in_order_of_arrival() -> None:
    made = scheduler(limits=Limits(max_running=4, max_total_tokens=100_000, chunked_prefill_tokens=8192))
    finished: list[int] = []
    engine = VirtualEngine(made, on_finished=lambda job: finished.append(job.number))
    for _ in range(12):
        engine.arrive(10, 50)
    engine.run_until(0.05)
    assert (len(made.running), len(made.queue)) == (4, 8)
    engine.run_until(60)
    assert (len(made.running), len(made.queue)) == (0, 0)
    assert {*finished[:4]} == {1, 2, 3, 4}
    assert sorted(finished) == list(range(1, 13))


def test_requests_wait_for_free_cache() -> None:
    made = scheduler(limits=Limits(max_running=64, max_total_tokens=1000, chunked_prefill_tokens=8192))
    for number in range(5):
        made.submit(Job(number, 200, 200, 0.0))
    made.finish(made.begin(0.0), 0.1)  # type: ignore[arg-type]
    assert (len(made.running), len(made.queue)) == (2, 3)
    assert made.used_tokens == 2 * 201


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs 1100 tokens \(prompt 1000 \+ output 100\)"):
        scheduler(limits=Limits(8, 1000, 8192)).submit(Job(1, 1000, 100, 0.0))


def test_prefill_goes_first_and_in_chunks() -> None:
    made = scheduler(limits=Limits(max_running=64, max_total_tokens=100_000, chunked_prefill_tokens=1000))
    for number in range(3):
        made.submit(Job(number, 600, 4, 0.0))
    kinds = []
    for moment in range(4):
        step = made.begin(float(moment))
        assert step is not None
        kinds.append((step.kind, len(step.jobs)))
        made.finish(step, moment + 0.5)
    assert kinds == [(Kind.PREFILL, 1), (Kind.PREFILL, 1), (Kind.PREFILL, 1), (Kind.DECODE, 3)]


def test_an_aborted_request_leaves_at_once() -> None:
    made = scheduler()
    running, waiting = Job(1, 10, 100, 0.0), Job(2, 10, 100, 0.0)
    made.submit(running)
    made.finish(made.begin(0.0), 0.1)  # type: ignore[arg-type]
    step = made.begin(0.1)
    made.submit(waiting)
    made.abort(running)
    made.abort(waiting)
    assert step is not None
    assert made.finish(step, 0.2).jobs == ()
    assert made.begin(0.2) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 80), st.floats(0, 2)), min_size=1, max_size=40),
    st.integers(1, 8),
    st.sampled_from((Mode.ON, Mode.OFF, Mode.NONE)),
)
def test_every_request_gets_exactly_its_tokens(
    requests: list[tuple[int, int, float]], max_running: int, mode: Mode
) -> None:
    made = scheduler(hooks=Unpatched(mode), limits=Limits(max_running, 1000, 512))
    done: list[Job] = []
    engine = VirtualEngine(made, on_finished=done.append)
    for prompt, output, at in requests:
        engine.arrive(prompt, output, at_seconds=at)
    engine.run_until(600)
    assert sorted((job.prompt_tokens, job.generated) for job in done) == sorted((p, o) for p, o, _ in requests)
    assert engine.tokens == sum(output for _, output, _ in requests)
    for job in done:
        assert job.first_token_seconds is not None
        assert job.finished_seconds is not None
        assert job.arrived_seconds < job.first_token_seconds <= job.finished_seconds
    assert made.used_tokens == 0


class Ledger:
    """The patch's counters under virtual time."""

    def __init__(self, tree: Path, threshold: int, permille: int = 0) -> None:
        runtime = load_runtime(tree / RUNTIME_DIRECTORY)
        assert runtime is not None
        self.threshold = threshold
        self._registry = CollectorRegistry()
        collector = SimpleNamespace(
            labels={"model_name": "m"},
            _counter_cls=lambda **options: Counter(**options, registry=self._registry),
            _gauge_cls=lambda **options: Gauge(**options, registry=self._registry),
        )
        self.hooks = Patched(
            runtime,
            read_threshold=lambda: self.threshold,
            read_permille=lambda: permille,
            num_steps=3,
            off_path="zero-step",
            collector=collector,
        )

    def values(self, name: str) -> dict[tuple[str, str], float]:
        """Values by mode and bucket, without those that are 0."""
        return {
            (sample.labels["mode"], sample.labels["batch_size"]): sample.value
            for family in self._registry.collect()
            for sample in family.samples
            if sample.name == name and sample.value
        }

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def test_the_patch_decides_and_counts_each_mode_at_its_rate(patched_tree: Path) -> None:
    ledger = Ledger(patched_tree, threshold=8)
    made = scheduler("mid", ledger.hooks)
    for concurrency in (4, 16):
        closed_loop(made, concurrency, seconds=60, settle_seconds=1)
        made.queue.clear()
        made.running.clear()
        assert made.begin(1000.0) is None
    steps, tokens, seconds = (
        ledger.values(f"sglang:spec_mode_{what}_total") for what in ("steps", "tokens", "seconds")
    )
    assert steps.keys() == tokens.keys() == seconds.keys()
    assert {mode for mode, bucket in steps if bucket in ("3-4", "5-6")} == {"on"}
    assert {mode for mode, bucket in steps if bucket in ("9-12", "13-16")} == {"off"}
    assert tokens["on", "3-4"] / seconds["on", "3-4"] == pytest.approx(
        made.curve.tokens_per_second(Mode.ON, 4), rel=0.05
    )
    assert tokens["off", "13-16"] / seconds["off", "13-16"] == pytest.approx(
        made.curve.tokens_per_second(Mode.OFF, 16), rel=0.05
    )


def test_probes_measure_the_other_mode_where_the_load_is(patched_tree: Path) -> None:
    ledger = Ledger(patched_tree, threshold=33, permille=60)
    made = scheduler("mid", ledger.hooks)
    closed_loop(made, 8, seconds=120, settle_seconds=1)
    made.running.clear()
    made.begin(1000.0)
    steps, tokens, seconds, requests = (
        ledger.values(f"sglang:spec_mode_{what}_total") for what in ("steps", "tokens", "seconds", "requests")
    )
    for mode in (Mode.ON, Mode.OFF):
        key = (mode.value, "7-8")
        batch_size = requests[key] / steps[key]
        expected = made.curve.tokens_per_second(mode, 8) * batch_size / 8
        assert tokens[key] / seconds[key] == pytest.approx(expected, rel=0.05), mode
    probes = ledger.values("sglang:spec_probe_steps_total")
    assert {mode for mode, _ in probes} == {"off"}
    share = sum(probes.values()) / sum(steps.values())
    assert 0.03 < share < 0.08, "the share is of all steps, those counted are somewhat fewer"
    assert sum(count for (mode, _), count in steps.items() if mode == "off") < sum(probes.values())


def test_a_threshold_changed_under_way_acts_at_the_next_step(patched_tree: Path) -> None:
    ledger = Ledger(patched_tree, threshold=0)
    made = scheduler("mid", ledger.hooks)
    for number in range(10):
        made.submit(Job(number, 10, 1000, 0.0))
    modes = []
    for moment, threshold in enumerate((0, 0, 10, 11, 1, 0)):
        ledger.threshold = threshold
        step = made.begin(float(moment))
        assert step is not None
        modes.append(step.mode)
        made.finish(step, moment + 0.5)
    assert modes == [None, Mode.ON, Mode.OFF, Mode.ON, Mode.OFF, Mode.ON]


def test_steps_next_to_a_prefill_are_not_counted(patched_tree: Path) -> None:
    ledger = Ledger(patched_tree, threshold=0)
    made = scheduler("mid", ledger.hooks)
    now = 0.0
    for number in range(20):  # each arrival brings a prefill, then exactly two decode steps
        made.submit(Job(number, 10, 1000, now))
        for _ in range(3):
            step = made.begin(now)
            assert step is not None
            now += step.seconds
            made.finish(step, now)
    made.running.clear()
    made.begin(now)
    assert sum(ledger.values("sglang:spec_mode_steps_total").values()) == 20
    assert 'spec_off_path{model_name="m",path="ZeroStep"} 1.0' in ledger.text()

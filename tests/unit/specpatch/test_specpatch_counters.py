"""Back-to-back decode steps are counted, steps next to anything else are not, and the sums reach Prometheus."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from sglang_operator.tuning import samples
from sglang_specpatch.runtime import buckets, counters, hooks, threshold

LABELS = {"model_name": "m", "tp_rank": 0}


def _walk(events: str) -> list[float | None]:
    """Play events one millisecond apart: D/P launch, r result of a decode, i idle; returns the results."""
    clock = counters.StepClock()
    seen: list[float | None] = []
    for position, event in enumerate(events):
        now = position / 1000
        if event in "DP":
            clock.launch(event == "D", now)
        elif event == "i":
            clock.idle()
        elif event == "r":
            seconds = clock.result(now)
            seen.append(None if seconds is None else round(seconds * 1000))
    return seen


@pytest.mark.parametrize(
    ("events", "counted"),
    [
        ("DrDrDr", [None, 2, 2]),
        ("PDrDrDr", [None, 2, 2]),
        ("DrDrPDrDr", [None, 2, None, 2]),
        ("DrDriDrDr", [None, 2, None, 2]),
        ("DDrDrDrr", [None, 2, 2, 1]),
        ("DDrDrrDDrDr", [None, 2, 1, None, 2]),
        ("DDrDrPrDDrDrDr", [None, 2, None, None, 2, 2]),
        ("DDrPrDDrDr", [None, None, None, 2]),
        ("PDDrDr", [None, 2]),
        ("r", [None]),
        ("DrrDr", [None, None, 2]),
    ],
    ids=str,
)
def test_only_back_to_back_decode_steps_have_a_duration(events: str, counted: list[float | None]) -> None:
    assert _walk(events) == counted


def test_a_stall_of_the_scheduler_breaks_the_chain() -> None:
    clock = counters.StepClock()
    clock.launch(True, 0.0)
    clock.result(0.1)
    clock.launch(True, 0.2)
    assert clock.result(5.2) == pytest.approx(5.1), "a step may take as long as it takes"
    clock.launch(True, 60.0)
    assert clock.result(60.1) is None, "but the scheduler does not wait a minute before it launches one"
    clock.launch(True, 60.1)
    assert clock.result(60.2) == pytest.approx(0.1)


@given(st.text("DPir", max_size=40))
def test_no_order_of_events_gives_a_negative_or_too_long_duration(events: str) -> None:
    for seconds in _walk(events):
        assert seconds is None or 0 < seconds < len(events)


@given(st.lists(st.sampled_from(["decode", "prefill", "idle"]), max_size=30), st.booleans())
def test_counted_steps_are_those_between_two_decode_results(turns: list[str], overlap: bool) -> None:
    """Model: with or without overlap, a step counts only if the turn before was a decode turn, too.

    Lone decode steps between turns without a batch look as if nothing overlapped, so the model leaves them out.
    """
    runs = [len(list(run)) for turn, run in itertools.groupby(turns) if turn == "decode"]
    assume(not overlap or min(runs, default=2) > 1)
    events: list[str] = []
    pending: str | None = None
    for turn in turns:
        mark = {"decode": "D", "prefill": "P", "idle": ""}[turn]
        if not overlap:
            events += {"decode": ["D", "r"], "prefill": ["P"], "idle": ["i"]}[turn]
            continue
        events.append(mark)
        if pending == "D":
            events.append("r")
        elif pending is None and turn == "idle":
            events.append("i")
        pending = mark or None
    counted = [seconds is not None for seconds in _walk("".join(events))]
    expected = []
    for number, turn in enumerate(turns if not overlap else turns[:-1]):
        if turn == "decode":
            chain = number > 0 and turns[number - 1] == "decode"
            followed = turns[number + 1 : number + 2] != ["prefill"] if overlap else True
            expected.append(chain and followed)
    assert len(counted) == len(expected)
    for number, (is_counted, may_count) in enumerate(zip(counted, expected, strict=True)):
        assert not is_counted or may_count, f"result {number} of {turns}"
    if not overlap:
        assert counted == expected


@pytest.mark.parametrize(
    ("size", "label"),
    [(1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-6"), (8, "7-8"), (9, "9-12"), (12, "9-12"), (13, "13-16"),
     (24, "17-24"), (32, "25-32"), (33, "33-48"), (64, "49-64"), (96, "65-96"), (128, "97-128"), (129, "129-192"),
     (256, "193-256"), (257, "257+"), (100_000, "257+")],
)  # fmt: skip
def test_buckets(size: int, label: str) -> None:
    assert buckets.bucket(size) == label


def test_bucket_labels_say_their_own_bounds() -> None:
    previous = 0
    for label in buckets.BUCKETS[:-1]:
        low, high = (label.split("-") * 2)[:2] if "-" in label else (label, label)
        assert int(low) == previous + 1
        assert buckets.bucket(int(low)) == buckets.bucket(int(high)) == label
        previous = int(high)
    assert buckets.BUCKETS[-1] == f"{previous + 1}+"


def test_engine_and_operator_have_the_same_buckets() -> None:
    """The engine imports nothing of the operator, so each has its own list."""
    assert tuple(bucket.label for bucket in samples.BUCKETS) == buckets.BUCKETS
    for bucket in samples.BUCKETS:
        assert buckets.bucket(bucket.low) == bucket.label
        assert buckets.bucket(bucket.high or 10**6) == bucket.label


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def _collector(registry: CollectorRegistry) -> SimpleNamespace:
    def made(kind: type) -> object:
        return lambda **options: kind(registry=registry, **options)

    return SimpleNamespace(labels=LABELS, _counter_cls=made(Counter), _gauge_cls=made(Gauge))


def _patch(value: int = 0, permille: int = 0) -> hooks.SpecPatch:
    return _live_patch(SimpleNamespace(value=value, permille=permille))


def _live_patch(live: SimpleNamespace, off_path: str = "ZeroStep") -> hooks.SpecPatch:
    settings = threshold.LiveSettings(lambda: int(live.value), lambda: int(live.permille))
    policy = threshold.ThresholdPolicy(threshold.ConfiguredSteps(3), settings, lambda: None)
    return hooks.SpecPatch(policy, off_path)


class Batch:
    """A batch of requests, decode or prefill."""

    def __init__(self, reqs: list[SimpleNamespace], prefill: bool = False, mixed: bool = False) -> None:
        self.reqs = reqs
        self.forward_mode = SimpleNamespace(is_extend=lambda: prefill)
        self.is_extend_in_batch = mixed


def _requests(count: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(finished_reason=None, is_retracted=False) for _ in range(count)]


def _rank(patch: hooks.SpecPatch | None, collector: SimpleNamespace | None, reports: bool = True) -> SimpleNamespace:
    worker = SimpleNamespace(specpatch=patch)
    reporter = SimpleNamespace(current_scheduler_metrics_enabled=reports)
    return SimpleNamespace(
        draft_worker=worker, model_worker=worker, metrics_reporter=reporter, metrics_collector=collector
    )


def _result(width: int, tokens: list[list[int]]) -> SimpleNamespace:
    return SimpleNamespace(
        speculative_num_draft_tokens=width, num_correct_drafts=sum(len(accepted) - 1 for accepted in tokens)
    )


def _launch(rank: SimpleNamespace, reqs: list[SimpleNamespace]) -> bool:
    """Begin a decode step as the worker does; returns whether it drafts."""
    hooks.note_forward(rank.model_worker, Batch(reqs))
    patch = rank.model_worker.specpatch
    return patch is None or patch.policy.get_steps_for_batch(len(reqs)) > 0


def _finish(rank: SimpleNamespace, reqs: list[SimpleNamespace], drafted: bool, tokens: list[list[int]]) -> None:
    hooks.note_result(rank, Batch(reqs), _result(4 if drafted else 1, tokens), tokens)


def _decode(rank: SimpleNamespace, reqs: list[SimpleNamespace], tokens: list[list[int]] | None = None) -> bool:
    drafted = _launch(rank, reqs)
    _finish(rank, reqs, drafted, tokens or [[1]] * len(reqs))
    return drafted


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {**{key: str(value) for key, value in LABELS.items()}, **labels})


def _counted(registry: CollectorRegistry, mode: str, batch_size: str) -> tuple[float | None, ...]:
    """Steps, tokens and requests of the counted steps, and all probe steps."""
    names = ("mode_steps", "mode_tokens", "mode_requests", "probe_steps")
    return tuple(_value(registry, f"sglang:spec_{name}_total", mode=mode, batch_size=batch_size) for name in names)


def test_both_modes_reach_prometheus_under_the_agreed_names(registry: CollectorRegistry) -> None:
    live = SimpleNamespace(value=8, permille=0)
    rank = _rank(_live_patch(live, "Decode"), _collector(registry))
    hooks.note_idle(rank)
    assert _value(registry, "sglang:spec_disable_batch_threshold") == 8
    assert _value(registry, "sglang:spec_probe_permille") == 0
    assert _value(registry, "sglang:spec_off_path", path="Decode") == 1
    few, many = _requests(3), _requests(10)
    for _ in range(5):
        _decode(rank, few, [[1, 2], [3], [4, 5, 6]])
    for _ in range(4):
        _decode(rank, many)
    live.value, live.permille = 9, 30
    hooks.note_idle(rank)
    assert _counted(registry, "on", "3-4") == (4, 24, 12, 0)
    assert _counted(registry, "off", "9-12") == (3, 30, 30, 0), "the first step of another mode doesn't count"
    seconds = _value(registry, "sglang:spec_mode_seconds_total", mode="on", batch_size="3-4") or 0
    squared = _value(registry, "sglang:spec_mode_seconds_squared_total", mode="on", batch_size="3-4") or 0
    assert 0 < seconds < 5
    assert seconds**2 / 4 <= squared * 1.000001 <= seconds**2
    assert _value(registry, "sglang:spec_mode_transitions_total", to="off") == 1
    assert _value(registry, "sglang:spec_mode_transitions_total", to="on") == 0
    assert _value(registry, "sglang:spec_disable_batch_threshold") == 9
    assert _value(registry, "sglang:spec_probe_permille") == 30


def test_every_counter_is_there_with_nought_before_the_first_request(registry: CollectorRegistry) -> None:
    hooks.note_idle(_rank(_patch(), _collector(registry)))
    samples_by_name: dict[str, list[float]] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            samples_by_name.setdefault(sample.name, []).append(sample.value)
    by_step = [
        f"sglang:spec_{name}_total"
        for name in (
            "mode_steps", "mode_tokens", "mode_seconds", "mode_requests", "mode_seconds_squared", "probe_steps"
        )
    ]  # fmt: skip
    for name in by_step:
        assert samples_by_name[name] == [0] * 32, "two modes, 16 buckets"
    assert samples_by_name["sglang:spec_mode_transitions_total"] == [0, 0]


def test_a_rank_that_does_not_report_and_a_server_without_metrics_publish_nothing(registry: CollectorRegistry) -> None:
    for rank in (_rank(_patch(), _collector(registry), reports=False), _rank(_patch(), None)):
        hooks.note_idle(rank)
        _decode(rank, _requests(1))
        hooks.note_idle(rank)
    assert list(registry.collect()) == []


def test_an_inactive_worker_is_not_measured(registry: CollectorRegistry) -> None:
    rank = _rank(None, _collector(registry))
    hooks.note_idle(rank)
    _decode(rank, _requests(1))
    assert list(registry.collect()) == []


def _unpublished(patch: hooks.SpecPatch) -> hooks.SpecPatch:
    patch.publish = lambda now: None  # type: ignore[method-assign]
    return patch


def test_a_mixed_or_prefill_batch_breaks_the_chain() -> None:
    for broken in (Batch([], prefill=True), Batch([], mixed=True)):
        patch = _unpublished(_patch())
        rank = _rank(patch, None)
        reqs = _requests(2)
        _decode(rank, reqs)
        hooks.note_forward(rank.model_worker, broken)
        _decode(rank, reqs)
        assert patch.sums.take() == {}
        _decode(rank, reqs)
        assert [sums.steps for sums in patch.sums.take().values()] == [1]


def _play(patch: hooks.SpecPatch, batch_sizes: list[int], *, overlap: bool, bridge: bool = False) -> None:
    """Decode. With overlap each result comes after the next launch; with a bridge drafting begins one step late."""
    rank = _rank(patch, None)
    waiting: list[tuple[list[SimpleNamespace], bool]] = []
    prepared = True
    for batch_size in batch_sizes:
        reqs = _requests(batch_size)
        drafts = _launch(rank, reqs)
        waiting.append((reqs, drafts and (prepared or not bridge)))
        prepared = drafts
        if len(waiting) > overlap:
            done, drafted = waiting.pop(0)
            _finish(rank, done, drafted, [[1]] * len(done))
    for done, drafted in waiting:
        _finish(rank, done, drafted, [[1]] * len(done))


def _steps(patch: hooks.SpecPatch) -> dict[str, tuple[int, int]]:
    return {f"{mode} {label}": (sums.steps, sums.probes) for (mode, label), sums in patch.sums.take().items()}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("limit", "bridge", "counted"),
    [
        (9, False, {"on 7-8": (6 + 3, 0), "off 7-8": (3, 4)}),
        (9, True, {"on 7-8": (6 + 2, 0), "off 7-8": (3, 4)}),
        (8, False, {"off 7-8": (6 + 3, 0), "on 7-8": (3, 4)}),
        (8, True, {"off 7-8": (6 + 3, 0), "on 7-8": (2, 3)}),
    ],
)
def test_a_probe_burst_is_counted_in_its_own_mode_without_the_steps_that_changed_it(
    limit: int, bridge: bool, counted: dict[str, tuple[int, int]], overlap: bool
) -> None:
    patch = _unpublished(_patch(limit, 500))
    _play(patch, [8] * 15, overlap=overlap, bridge=bridge)
    assert _steps(patch) == counted


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("bridge", [False, True])
@pytest.mark.parametrize("limit", [8, 9])
def test_probes_are_no_transitions(limit: int, bridge: bool, overlap: bool) -> None:
    registry = CollectorRegistry()
    patch = _patch(limit, 500)
    patch.ensure_publisher(SimpleNamespace(current_scheduler_metrics_enabled=True), _collector(registry))
    _play(patch, [8] * 300, overlap=overlap, bridge=bridge)
    assert _transitions(registry) == (0, 0)
    _play(patch, [limit - 1, limit - 1, limit, limit, limit] * 20, overlap=overlap, bridge=bridge)
    to_on, to_off = _transitions(registry)
    assert min(to_on, to_off) >= 10
    assert abs(to_on - to_off) <= 1


def _transitions(registry: CollectorRegistry) -> tuple[float, float]:
    to_on, to_off = (_value(registry, "sglang:spec_mode_transitions_total", to=mode) for mode in ("on", "off"))
    assert to_on is not None
    assert to_off is not None
    return to_on, to_off


def test_a_step_beside_a_prefill_is_a_probe_but_not_counted() -> None:
    patch = _unpublished(_patch(9, 500))
    rank, reqs = _rank(patch, None), _requests(8)
    for _ in range(9):
        _decode(rank, reqs)
    hooks.note_forward(rank.model_worker, Batch([], prefill=True))
    for _ in range(2):
        assert not _decode(rank, reqs)
    assert _steps(patch) == {"on 7-8": (6, 0), "off 7-8": (1 + 1, 4)}


def test_tokens_of_requests_that_had_ended_are_not_counted() -> None:
    """With overlap a step still carries requests that ended in the step before; what it makes for them is lost."""
    patch = _unpublished(_patch())
    rank = _rank(patch, None)
    reqs = _requests(3)
    tokens = [[1, 2], [3, 4], [5, 6]]
    _launch(rank, reqs)
    _launch(rank, reqs)
    _finish(rank, reqs, True, tokens)
    reqs[1].finished_reason = "length"
    _launch(rank, [reqs[0], reqs[2]])
    _finish(rank, reqs, True, tokens)
    assert [sums[:2] for sums in patch.sums.take().values()] == [(1, 4)]
    reqs[0].is_retracted = True
    reqs[2].finished_reason = "stop"
    _finish(rank, [reqs[0], reqs[2]], True, tokens[:2])
    assert [sums[:2] for sums in patch.sums.take().values()] == [(1, 0)]


def test_sums_are_published_twice_a_second_at_most(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now.value)
    rank = _rank(_patch(), _collector(registry))
    published = set()
    for step in range(300):
        now.value = 100.0 + step / 100
        _decode(rank, _requests(1))
        published.add(_value(registry, "sglang:spec_mode_steps_total", mode="on", batch_size="1"))
    assert len(published) == 6


def test_a_failure_of_the_bookkeeping_is_said_once_and_serving_goes_on(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    collector = _collector(registry)
    Counter("sglang:spec_mode_steps_total", "taken", registry=registry)
    rank = _rank(_patch(2), collector)
    for _ in range(3):
        hooks.note_idle(rank)
        _decode(rank, _requests(2))
    assert len([record for record in caplog.records if "serving goes on" in record.message]) == 1
    assert rank.model_worker.specpatch.policy.get_steps_for_batch(2) == 0


def test_the_default_registry_stays_as_it_was() -> None:
    assert not [metric.name for metric in REGISTRY.collect() if "spec_mode" in metric.name]

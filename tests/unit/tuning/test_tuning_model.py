"""One service's evidence out of the answer for the whole cluster: whose, how old, how much."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest
from evidence import START, bucket

from sglang_operator.api.reasons import Reason
from sglang_operator.tuning.model import Evidence, gather, unavailable
from sglang_operator.tuning.samples import (
    SPARSE,
    WINDOWS,
    Ignored,
    MetricsSnapshot,
    Mode,
    ModeSample,
    PodLoad,
    ProbeSample,
    Window,
)


def load(pod: str, *, age: float = 2, running: float | None = 4, namespace: str = "team") -> PodLoad:
    return PodLoad(
        namespace=namespace,
        pod=pod,
        sampled_at=START - timedelta(seconds=age),
        running_requests=running,
        series="sglang:spec_mode_seconds_total",
    )


def sample(
    pod: str,
    mode: Mode = Mode.ON,
    *,
    label: str = "9-12",
    window: Window = WINDOWS[0],
    steps: float = 100,
    squares: float | None = 0.04,
    namespace: str = "team",
) -> ModeSample:
    return ModeSample(
        namespace=namespace,
        pod=pod,
        mode=mode,
        bucket=bucket(label),
        window=window,
        steps=steps,
        requests=10 * steps,
        tokens=24 * steps,
        seconds=0.02 * steps,
        seconds_squared=squares,
    )


def pick(snapshot: MetricsSnapshot, *, pods: Collection[str] = ("a", "b"), max_age: int = 60) -> Evidence:
    return gather(snapshot, namespace="team", pods=pods, now=START, max_age_seconds=max_age)


def test_sums_are_pooled_over_pods() -> None:
    snapshot = MetricsSnapshot(
        taken_at=START,
        loads=(load("a"), load("b", age=9)),
        modes=(
            sample("a", steps=300),
            sample("b", steps=100),
            sample("a", Mode.OFF, steps=7),
            sample("a", window=WINDOWS[2], steps=50, squares=None),
            sample("b", window=WINDOWS[2], steps=50),
        ),
        probes=tuple(
            ProbeSample(namespace="team", pod=pod, mode=Mode.OFF, bucket=bucket("9-12"), steps=8) for pod in "abx"
        ),
    )
    evidence = pick(snapshot)
    off, on, older = sorted(evidence.cells, key=lambda cell: (cell.window.age_seconds, cell.steps))
    assert (on.steps, on.batch_size, on.tokens_per_request, on.seconds_squared) == (400, 10, 2.4, 0.08)
    assert on.step_seconds == pytest.approx(0.02)
    assert (off.mode, off.steps) == (Mode.OFF, 7)
    assert older.seconds_squared is None, "one of them didn't tell"
    assert [probe.steps for probe in evidence.probes] == [16]
    assert (evidence.running_requests, evidence.queued_requests) == (8, None)
    assert evidence.age_seconds(START) == 2
    assert evidence.freshness.reason is Reason.FRESH
    assert evidence.freshness.message == "2 of 2 pods have fresh samples of sglang:spec_mode_seconds_total."


def test_the_sparse_window_stands_in_for_the_newest_two_and_never_beside_them() -> None:
    dense = (sample("a"), sample("a", window=WINDOWS[1]), sample("a", window=SPARSE, steps=999))
    sparse = (sample("b", window=WINDOWS[1], steps=999), sample("b", window=SPARSE, steps=3))
    older = (sample("a", window=WINDOWS[2]), sample("b", window=WINDOWS[2]))
    snapshot = MetricsSnapshot(taken_at=START, loads=(load("a"), load("b")), modes=(*dense, *sparse, *older))
    found = {cell.window: cell.steps for cell in pick(snapshot).cells}
    assert found == {WINDOWS[0]: 100, WINDOWS[1]: 100, SPARSE: 3, WINDOWS[2]: 200}


def test_a_burst_between_the_scrapes_of_two_windows_is_not_lost() -> None:
    """It is in the increase of neither window, but in that of the sparse one."""
    off = tuple(sample("a", Mode.OFF, window=window) for window in (*WINDOWS[:2], SPARSE))
    burst = sample("a", mode=Mode.ON, window=SPARSE, steps=7)
    found = pick(MetricsSnapshot(taken_at=START, modes=(*off, burst), loads=(load("a"),)))
    assert {(cell.mode, cell.window): cell.steps for cell in found.cells} == {
        (Mode.OFF, WINDOWS[0]): 100,
        (Mode.OFF, WINDOWS[1]): 100,
        (Mode.ON, SPARSE): 7,
    }


def test_only_pods_that_the_service_owns_and_that_are_still_scraped_count() -> None:
    snapshot = MetricsSnapshot(
        taken_at=START,
        loads=(load("a"), load("gone"), load("b", age=61), load("a", namespace="other"), load("future", age=-6)),
        modes=tuple(
            sample(pod, namespace=namespace)
            for pod, namespace in (("a", "team"), ("gone", "team"), ("b", "team"), ("a", "other"), ("future", "team"))
        ),
    )
    evidence = pick(snapshot, pods=("a", "b", "future"))
    (found,) = evidence.cells
    assert found.steps == 100
    assert evidence.running_requests == 4
    assert evidence.freshness.message.startswith("1 of 3 pods")


@pytest.mark.parametrize(
    ("loads", "pods", "ignored", "reason", "said"),
    [
        ((), ("a",), Ignored(), Reason.NO_DATA, "no sglang:spec_* series of the 1 pods"),
        ((), ("a",), Ignored(no_pod=2), Reason.NO_DATA, "without the labels namespace and pod"),
        ((load("a"),), (), Ignored(), Reason.NO_DATA, "no pod yet"),
        ((load("x"),), ("a",), Ignored(), Reason.NO_DATA, "no sglang:spec_* series"),
        (
            (load("a", age=61),),
            ("a",),
            Ignored(),
            Reason.STALE,
            "of pod a, is from 2026-03-01 11:58:59 UTC, more than 60 s ago",
        ),
        ((load("a", age=600), load("b", age=70)), ("a", "b"), Ignored(), Reason.STALE, "of pod b"),
        (
            (load("a", age=-600),),
            ("a",),
            Ignored(),
            Reason.STALE,
            "pod a are stamped more than 5 s ahead of the operator's clock",
        ),
    ],
)
def test_without_a_fresh_pod_there_is_no_evidence_at_all(
    loads: tuple[PodLoad, ...], pods: tuple[str, ...], ignored: Ignored, reason: Reason, said: str
) -> None:
    modes = tuple(sample(item.pod) for item in loads)
    evidence = pick(MetricsSnapshot(taken_at=START, loads=loads, modes=modes, ignored=ignored), pods=pods)
    assert evidence.cells == ()
    assert evidence.has_pods is bool(pods)
    assert evidence.running_requests is None
    assert not evidence.freshness.fresh
    assert evidence.freshness.reason is reason
    assert said in evidence.freshness.message


@pytest.mark.parametrize("age", [0, 60, -5])
def test_the_edges_of_fresh(age: float) -> None:
    evidence = pick(MetricsSnapshot(taken_at=START, loads=(load("a", age=age),)))
    assert evidence.freshness.fresh
    assert evidence.age_seconds(START) == max(0, age)


@pytest.mark.parametrize("age", [2, 100, -600])
def test_a_message_does_not_tick(age: float) -> None:
    """It ends up in the status, where a new text is a write."""
    snapshot = MetricsSnapshot(taken_at=START, loads=(load("a", age=age), load("b", age=age + 1)))
    messages = {
        gather(
            snapshot, namespace="team", pods=("a", "b"), now=START + timedelta(seconds=late), max_age_seconds=60
        ).freshness.message
        for late in range(10)
    }
    assert len(messages) == 1


def test_the_time_of_the_last_good_sample_is_kept() -> None:
    before = START - timedelta(hours=1)
    stale = gather(
        MetricsSnapshot(taken_at=START, loads=(load("a", age=100),)),
        namespace="team",
        pods=("a",),
        now=START,
        max_age_seconds=60,
        last_sample_at=before,
    )
    assert stale.freshness.newest_sample_at == before
    lost = unavailable(Reason.METRICS_UNREACHABLE, "Prometheus at p:9090 can't be reached.", last_sample_at=before)
    assert lost.freshness.newest_sample_at == before
    assert lost.freshness.reason is Reason.METRICS_UNREACHABLE
    assert not lost.freshness.fresh
    assert lost.age_seconds(START) == 3600


def test_running_requests_that_nobody_reports_are_unknown() -> None:
    evidence = pick(MetricsSnapshot(taken_at=START, loads=(load("a", running=None),)))
    assert evidence.running_requests is None

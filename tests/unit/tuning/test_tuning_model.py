"""One service's evidence out of the answer for the whole cluster: whose, how old, how much."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest
from evidence import START, bucket

from sglang_operator.api.reasons import Reason
from sglang_operator.tuning.model import Evidence, Rate, gather, unavailable
from sglang_operator.tuning.samples import Ignored, MetricsSnapshot, Mode, ModeSample, PodLoad


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
    tokens: float = 1000,
    seconds: float = 2,
    recent: float = 1,
    namespace: str = "team",
) -> ModeSample:
    return ModeSample(
        namespace=namespace,
        pod=pod,
        mode=mode,
        bucket=bucket(label),
        tokens=tokens,
        seconds=seconds,
        recent_seconds=recent,
    )


def pick(snapshot: MetricsSnapshot, *, pods: Collection[str] = ("a", "b"), max_age: int = 60) -> Evidence:
    return gather(snapshot, namespace="team", pods=pods, now=START, max_age_seconds=max_age)


def test_rates_are_pooled_over_pods_by_their_time() -> None:
    snapshot = MetricsSnapshot(
        taken_at=START,
        loads=(load("a"), load("b", age=9)),
        modes=(
            sample("a", tokens=3000, seconds=3),
            sample("b", tokens=500, seconds=1, recent=0.5),
            sample("a", Mode.OFF, tokens=100, seconds=1, recent=0),
            sample("a", label="2", tokens=0, seconds=0, recent=0),
        ),
    )
    evidence = pick(snapshot)
    (item,) = evidence.buckets
    assert item.on == Rate(tokens=3500, seconds=4)
    assert item.on.tokens_per_second == 875
    assert item.rate(Mode.OFF) == Rate(tokens=100, seconds=1)
    assert (item.recent_seconds, evidence.recent_seconds) == (1.5, 1.5)
    assert evidence.running_requests == 8
    assert evidence.age_seconds(START) == 2
    assert evidence.freshness.reason is Reason.FRESH
    assert evidence.freshness.message == "2 of 2 pods have fresh samples of sglang:spec_mode_seconds_total."


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
    assert evidence.buckets[0].on == Rate(tokens=1000, seconds=2)
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
    assert evidence.buckets == ()
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

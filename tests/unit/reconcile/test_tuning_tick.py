"""One tick of the tuning loop: decisions from an answer for the whole cluster, nothing written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from fakes import FakeClock, FakeMetrics
from sglang_operator.api.decision import Decision
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdSource
from sglang_operator.errors import MetricsError
from sglang_operator.reconcile.memory import Memory
from sglang_operator.reconcile.queue import WorkQueue
from sglang_operator.reconcile.tuning import TuningLoop
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.samples import BUCKETS, WINDOWS, MetricsSnapshot, Mode, ModeSample, PodLoad

KEY = ServiceKey("team", "llama")
BUSY = next(bucket for bucket in BUCKETS if bucket.low == 25)


class Loop:
    """A tuning loop over one measured service with one pod, and what it asked for."""

    def __init__(self, answer: MetricsSnapshot | MetricsError | None = None) -> None:
        self.clock, self.memory, self.queue = FakeClock(), Memory(), WorkQueue()
        self.metrics = FakeMetrics(answer or self.snapshot(on=100, off=200))
        service = self.memory.of(KEY)
        service.policy = DisableThreshold()
        service.pods = frozenset({"llama-0"})
        service.decision = Decision(
            batch_size=64,
            source=ThresholdSource.SPEC,
            decided_at=self.clock.now() - timedelta(hours=1),
            message="",
        )
        self.service = service
        self.tuning = TuningLoop(
            metrics=self.metrics,
            clock=self.clock,
            memory=self.memory,
            queue=self.queue,
            limits=Limits(),
            max_age_seconds=60,
        )

    def snapshot(self, *, on: float, off: float, pod: str = "llama-0", age_seconds: float = 2) -> MetricsSnapshot:
        now = self.clock.now()
        samples = [
            ModeSample(
                namespace=KEY.namespace,
                pod=pod,
                mode=mode,
                bucket=BUSY,
                window=WINDOWS[0],
                steps=1000,
                requests=28_000,
                tokens=rate * 30,
                seconds=30,
            )
            for mode, rate in ((Mode.ON, on), (Mode.OFF, off))
        ]
        load = PodLoad(
            namespace=KEY.namespace, pod=pod, sampled_at=now - timedelta(seconds=age_seconds), running_requests=28
        )
        return MetricsSnapshot(taken_at=now, modes=tuple(samples), loads=(load,))

    async def queued(self) -> list[ServiceKey]:
        found = []
        while True:
            try:
                found.append(await asyncio.wait_for(self.queue.take(), timeout=0.05))
            except TimeoutError:
                return found
            self.queue.done(found[-1])


async def test_measured_rates_move_the_threshold_and_queue_the_service() -> None:
    loop = Loop()
    assert await loop.tuning.tick()
    assert loop.service.decision is not None
    assert loop.service.decision.batch_size <= BUSY.low
    assert loop.service.decision.source is ThresholdSource.MEASURED
    assert await loop.queued() == [KEY]


async def test_a_threshold_that_stays_queues_nothing_after_the_first_word_on_metrics() -> None:
    loop = Loop()
    loop.metrics.answer = loop.snapshot(on=200, off=100)
    await loop.tuning.tick()
    assert await loop.queued() == [KEY], "the first fresh answer is news for the status"
    for _ in range(3):
        await loop.tuning.tick()
        assert await loop.queued() == []
    assert loop.service.decision is not None
    assert loop.service.decision.batch_size == 64


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (MetricsError(Reason.METRICS_UNREACHABLE, "no connection"), Reason.METRICS_UNREACHABLE),
        (MetricsSnapshot(taken_at=FakeClock().now()), Reason.NO_DATA),
    ],
)
async def test_without_metrics_the_value_holds_and_the_reason_is_remembered(
    answer: MetricsSnapshot | MetricsError, reason: Reason
) -> None:
    loop = Loop(answer)
    await loop.tuning.tick()
    assert loop.service.decision is not None
    assert loop.service.decision.batch_size == 64
    assert loop.service.metrics is not None
    assert loop.service.metrics.reason is reason
    assert await loop.queued() == [KEY]


async def test_stale_samples_move_nothing() -> None:
    loop = Loop()
    loop.metrics.answer = loop.snapshot(on=100, off=200, age_seconds=600)
    await loop.tuning.tick()
    assert loop.service.metrics is not None
    assert loop.service.metrics.reason is Reason.STALE
    assert loop.service.decision is not None
    assert loop.service.decision.batch_size == 64


async def test_another_pods_samples_count_for_nothing() -> None:
    loop = Loop()
    loop.metrics.answer = loop.snapshot(on=100, off=200, pod="llama-of-yesterday")
    await loop.tuning.tick()
    assert loop.service.decision is not None
    assert loop.service.decision.batch_size == 64


async def test_lost_metrics_keep_the_time_of_the_last_good_sample() -> None:
    loop = Loop()
    await loop.tuning.tick()
    assert loop.service.metrics is not None
    good = loop.service.metrics.last_good_at
    assert good is not None
    loop.metrics.answer = MetricsError(Reason.METRICS_UNREACHABLE, "no connection")
    assert not await loop.tuning.tick()
    assert loop.service.metrics.last_good_at == good


async def test_no_measured_service_asks_nothing() -> None:
    loop = Loop(MetricsError(Reason.METRICS_UNREACHABLE, "must not be asked"))
    loop.service.policy = None
    assert await loop.tuning.tick()


async def test_a_changed_probe_share_alone_queues_the_service() -> None:
    loop = Loop()
    loop.metrics.answer = loop.snapshot(on=200, off=100)
    await loop.tuning.tick()
    assert loop.service.decision is not None
    share, decided_at = loop.service.decision.probe_permille, loop.service.decision.decided_at
    assert share > 0
    await loop.queued()
    loop.metrics.answer = MetricsError(Reason.METRICS_UNREACHABLE, "no connection")
    await loop.tuning.tick()
    assert await loop.queued() == [KEY]
    assert (loop.service.decision.probe_permille, loop.service.decision.decided_at) == (0, decided_at)


async def test_without_a_prometheus_nothing_is_probed() -> None:
    """An operator that had one may have left a share behind."""
    loop = Loop()
    assert loop.service.decision is not None
    loop.service.decision = replace(loop.service.decision, probe_permille=8)
    tuning = replace(loop.tuning, metrics=None)
    assert await tuning.tick()
    assert loop.service.decision.probe_permille == 0
    assert loop.service.decision.batch_size == 64

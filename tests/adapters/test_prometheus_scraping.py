"""A real Prometheus that scrapes: a fresh sample arrives, a target that is gone leaves no load behind."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import prometheus
import pytest

from sglang_operator.adapters.clock import SystemClock
from sglang_operator.adapters.prometheus import PrometheusMetrics
from sglang_operator.settings import Settings
from sglang_operator.tuning.samples import WINDOWS, MetricsSnapshot, ModeSample

# The first use on a machine unpacks Prometheus into the cache.
pytestmark = pytest.mark.timeout(300)

DEADLINE_SECONDS = 30


def exposition(steps: int) -> str:
    """What a patched server shows after some decode steps of 16 requests, 20 ms each."""
    labels = '{mode="off",batch_size="13-16",tp_rank="0"}'
    return (
        "# TYPE sglang:spec_mode_tokens_total counter\n"
        f"sglang:spec_mode_tokens_total{labels} {16 * steps}\n"
        "# TYPE sglang:spec_mode_steps_total counter\n"
        f"sglang:spec_mode_steps_total{labels} {steps}\n"
        "# TYPE sglang:spec_mode_requests_total counter\n"
        f"sglang:spec_mode_requests_total{labels} {16 * steps}\n"
        "# TYPE sglang:spec_mode_seconds_total counter\n"
        f"sglang:spec_mode_seconds_total{labels} {0.02 * steps}\n"
        'sglang:spec_disable_batch_threshold{tp_rank="0"} 8\n'
        'sglang:num_running_reqs{tp_rank="0"} 16\n'
    )


def newest(snapshot: MetricsSnapshot) -> list[ModeSample]:
    return [mode for mode in snapshot.modes if mode.window == WINDOWS[0]]


@pytest.fixture
def exporters() -> Iterator[tuple[prometheus.Exporter, prometheus.Exporter]]:
    pair = (prometheus.Exporter(exposition(100)), prometheus.Exporter(exposition(100)))
    yield pair
    for exporter in pair:
        exporter.stop()


@contextlib.asynccontextmanager
async def asking(
    address: str,
) -> AsyncIterator[Callable[[Callable[[MetricsSnapshot], bool], str], Awaitable[MetricsSnapshot]]]:
    settings = Settings(prometheus_url=address)
    metrics = PrometheusMetrics(settings, SystemClock())

    async def until(accept: Callable[[MetricsSnapshot], bool], what: str) -> MetricsSnapshot:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            snapshot = await metrics.snapshot()
            if accept(snapshot):
                return snapshot
            assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {what}; last: {snapshot}"
            await asyncio.sleep(0.2)

    try:
        yield until
    finally:
        await metrics.close()


async def test_from_a_scrape_to_a_rate_and_to_silence(
    tmp_path: pathlib.Path, exporters: tuple[prometheus.Exporter, prometheus.Exporter]
) -> None:
    first, second = exporters
    targets = [
        prometheus.Target(job="pods", address=first.address, labels={"namespace": "team", "pod": "first"}),
        prometheus.Target(job="again", address=first.address, labels={"namespace": "team", "pod": "first"}),
        prometheus.Target(job="second", address=second.address, labels={"namespace": "team", "pod": "second"}),
    ]
    with prometheus.prometheus(tmp_path, targets=targets) as address:
        async with asking(address) as until:
            seen = await until(lambda snapshot: len(snapshot.loads) == 2, "both pods were scraped")
            assert {load.running_requests for load in seen.loads} == {16.0}

            for steps in range(150, 401, 50):
                first.text = second.text = exposition(steps)
                await asyncio.sleep(0.5)
            seen = await until(
                lambda snapshot: (
                    {mode.pod for mode in newest(snapshot)} == {"first", "second"}
                    and all(mode.seconds > 3 for mode in newest(snapshot))
                ),
                "both pods show decode time",
            )
            for mode in newest(seen):
                assert mode.tokens / mode.seconds == pytest.approx(800, rel=1e-6)
                assert mode.seconds < 3 * 0.02 * 300
                assert mode.requests / mode.steps == pytest.approx(16, rel=1e-6)

            second.stop()
            seen = await until(lambda snapshot: len(snapshot.loads) == 1, "the stopped pod has no load any more")
            assert seen.loads[0].pod == "first"
            # Its counters live on in the window; only the missing load says that it is gone.
            assert {mode.pod for mode in seen.modes} == {"first", "second"}

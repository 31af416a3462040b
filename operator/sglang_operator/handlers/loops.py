"""The loops beside kopf: workers over the queue, the tuning loop, and the resync that misses no edit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sglang_operator.adapters import telemetry
from sglang_operator.adapters.ports import Clock, Cluster
from sglang_operator.api.names import ServiceKey
from sglang_operator.errors import ClusterError, OperatorError
from sglang_operator.handlers.heartbeat import Heartbeat
from sglang_operator.reconcile.queue import WorkQueue
from sglang_operator.reconcile.service import ServiceReconciler
from sglang_operator.reconcile.tuning import TuningLoop

logger = logging.getLogger(__name__)

SILENCE_FACTOR: Final = 3
SILENCE_FLOOR_SECONDS: Final = 90.0


@dataclass(frozen=True, kw_only=True)
class Loops:
    """Everything that runs for ever beside the watches."""

    cluster: Cluster
    clock: Clock
    queue: WorkQueue
    reconciler: ServiceReconciler
    tuning: TuningLoop
    heartbeat: Heartbeat
    tuning_interval_seconds: float
    resync_interval_seconds: float

    async def work(self) -> None:
        """Take services from the queue and make passes, for ever."""
        while True:
            key = await self.queue.take()
            try:
                await self._pass(key)
            finally:
                self.queue.done(key)

    async def tune(self) -> None:
        """Make a tuning pass at each interval, for ever."""
        await self._repeat("tuning", self.tuning_interval_seconds, self._tick)

    async def resync(self) -> None:
        """List all services and ask for a pass over each, at each interval, for ever."""
        await self._repeat("resync", self.resync_interval_seconds, self._list)

    async def _pass(self, key: ServiceKey) -> None:
        started = self.clock.monotonic_seconds()
        try:
            retry_after_seconds = await self.reconciler.reconcile(key)
        except OperatorError as error:
            delay = self.queue.retry(key)
            telemetry.PASSES.labels("failed").inc()
            logger.warning("%s: pass failed, again in %.1f s: %s", key, delay, error)
        except Exception:  # one service's defect must not stop the others
            delay = self.queue.retry(key)
            telemetry.PASSES.labels("crashed").inc()
            logger.exception("%s: pass crashed, again in %.1f s", key, delay)
        else:
            self.queue.succeeded(key)
            telemetry.PASSES.labels("done").inc()
            if retry_after_seconds is not None:
                self.queue.add_after(key, retry_after_seconds)
        telemetry.PASS_SECONDS.observe(self.clock.monotonic_seconds() - started)

    async def _tick(self) -> None:
        started = self.clock.monotonic_seconds()
        try:
            usable = await self.tuning.tick()
            telemetry.TICKS.labels("done" if usable else "without metrics").inc()
        except Exception:  # the next tick may do better, and the thresholds stay where they are
            telemetry.TICKS.labels("crashed").inc()
            logger.exception("tuning pass crashed; thresholds stay as they are")
        telemetry.TICK_SECONDS.observe(self.clock.monotonic_seconds() - started)

    async def _list(self) -> None:
        try:
            services = await self.cluster.list_services()
        except ClusterError as error:
            logger.warning("services could not be listed: %s", error)
            return
        telemetry.SERVICES.set(len(services))
        present = {ServiceKey(item["metadata"]["namespace"], item["metadata"]["name"]) for item in services}
        for key in present.union(self.reconciler.memory.known()):
            self.queue.add(key)

    async def _repeat(self, name: str, interval_seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        self.heartbeat.expect(name, within_seconds=max(SILENCE_FLOOR_SECONDS, SILENCE_FACTOR * interval_seconds))
        while True:
            started = self.clock.monotonic_seconds()
            await action()
            self.heartbeat.beat(name)
            spent_seconds = self.clock.monotonic_seconds() - started
            await self.clock.sleep(max(0.1, interval_seconds - spent_seconds))

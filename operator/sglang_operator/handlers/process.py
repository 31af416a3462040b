"""The operator process: builds the adapters, starts kopf and the loops, and ends all of them together."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

import kopf
from kubernetes.aio.client import ApiClient
from prometheus_client import start_http_server

from sglang_operator import __version__
from sglang_operator.adapters.clock import SystemClock
from sglang_operator.adapters.engine import HttpEngine
from sglang_operator.adapters.kube import KubernetesCluster, load_configuration
from sglang_operator.adapters.prometheus import PrometheusMetrics
from sglang_operator.errors import ClusterError
from sglang_operator.handlers.heartbeat import Heartbeat
from sglang_operator.handlers.loops import Loops
from sglang_operator.handlers.registry import build_registry
from sglang_operator.reconcile.memory import Memory
from sglang_operator.reconcile.queue import WorkQueue
from sglang_operator.reconcile.service import ServiceReconciler
from sglang_operator.reconcile.threshold import Synchronizer
from sglang_operator.reconcile.tuning import TuningLoop
from sglang_operator.render.enginepatch import PatchArchive
from sglang_operator.settings import Settings
from sglang_operator.tuning.limits import Limits

logger = logging.getLogger(__name__)

START_DEADLINE_SECONDS: Final = 60.0
START_RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """The outside world."""

    clock: SystemClock
    cluster: KubernetesCluster
    engine: HttpEngine
    metrics: PrometheusMetrics | None

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.close()
        if self.metrics is not None:
            await self.metrics.close()
        await self.cluster.close()


def _identity() -> str:
    """Name of this process among others: the pod's."""
    return os.environ.get("HOSTNAME", "sglang-operator")


async def connect(settings: Settings) -> Adapters:
    """Build the adapters; nothing is asked of the outside yet.

    Raises:
        ClusterError: there is no way to reach a cluster.
    """
    clock = SystemClock()
    configuration = await load_configuration()
    cluster = KubernetesCluster(
        ApiClient(configuration),
        clock,
        watch_namespaces=settings.watch_namespaces,
        identity=_identity(),
    )
    metrics = PrometheusMetrics(settings, clock) if settings.prometheus_url else None
    engine = HttpEngine(timeout_seconds=settings.engine_timeout_seconds)
    return Adapters(clock=clock, cluster=cluster, engine=engine, metrics=metrics)


async def wait_for_api(adapters: Adapters) -> None:
    """Wait until InferenceServices can be listed.

    Raises:
        ClusterError: not within the deadline; the sentence says why, and the kubelet starts the process again.
    """
    clock = adapters.clock
    deadline = clock.monotonic_seconds() + START_DEADLINE_SECONDS
    while True:
        try:
            await adapters.cluster.list_services()
        except ClusterError as error:
            if clock.monotonic_seconds() > deadline:
                raise
            hint = " Is the CRD installed?" if error.status == 404 else ""
            logger.warning("InferenceServices can't be listed yet: %s%s", error, hint)
            await clock.sleep(START_RETRY_SECONDS)
        else:
            return


def build_loops(settings: Settings, adapters: Adapters, patch: PatchArchive) -> Loops:
    """Wire reconciling and tuning to the adapters."""
    memory, queue = Memory(), WorkQueue()
    synchronizer = Synchronizer(
        engine=adapters.engine,
        clock=adapters.clock,
        read_back_interval_seconds=settings.resync_interval_seconds,
    )
    reconciler = ServiceReconciler(
        cluster=adapters.cluster,
        clock=adapters.clock,
        synchronizer=synchronizer,
        memory=memory,
        patch=patch,
        metrics_configured=adapters.metrics is not None,
    )
    tuning = TuningLoop(
        metrics=adapters.metrics,
        clock=adapters.clock,
        memory=memory,
        queue=queue,
        limits=Limits(dwell_seconds=settings.tuning_dwell_seconds),
        max_age_seconds=settings.metrics_max_age_seconds,
    )
    return Loops(
        cluster=adapters.cluster,
        clock=adapters.clock,
        queue=queue,
        reconciler=reconciler,
        tuning=tuning,
        heartbeat=Heartbeat(adapters.clock),
        tuning_interval_seconds=settings.tuning_interval_seconds,
        resync_interval_seconds=settings.resync_interval_seconds,
    )


async def run(settings: Settings, patch: PatchArchive) -> None:
    """Run until a signal ends kopf, or until any part fails, which ends all.

    Raises:
        ClusterError: no cluster could be reached at the start.
        Exception: whatever a loop died of; loops end on defects only.
    """
    adapters = await connect(settings)
    try:
        await wait_for_api(adapters)
        start_http_server(settings.metrics_port)
        logger.info("sglang-operator %s, engine patch %s", __version__, patch.digest[:12])
        await _run_together(settings, adapters, build_loops(settings, adapters, patch))
    finally:
        await adapters.close()


async def _run_together(settings: Settings, adapters: Adapters, loops: Loops) -> None:
    stop = asyncio.Event()
    parts: list[tuple[str, Coroutine[Any, Any, None]]] = [("tuning", loops.tune()), ("resync", loops.resync())]
    parts += [(f"worker {number}", loops.work()) for number in range(settings.max_parallel_passes)]
    tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in parts]
    # kopf cancels, at its end, every task that started after it; the loops start before and are ended here.
    watches = asyncio.create_task(
        kopf.operator(
            registry=build_registry(loops.queue, loops.heartbeat, adapters.clock),
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            standalone=True,
            # Without it kopf asks for the user's name, which an arbitrary user id doesn't have.
            identity=cast(Any, _identity()),
            stop_flag=stop,
            liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
        ),
        name="watches",
    )
    done, _ = await asyncio.wait([watches, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    loops.queue.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, watches, return_exceptions=True)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s ended with an error", task.get_name())
            raise error

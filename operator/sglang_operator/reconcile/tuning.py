"""One tick of the slow loop: ask Prometheus once for the whole cluster, decide for each service, queue what changed.

Nothing is written here. A changed decision is remembered and the service queued; its pass persists it, pushes it to
the pods and reads it back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sglang_operator.adapters.ports import Clock, Metrics
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.errors import MetricsError
from sglang_operator.reconcile.memory import Memory, ServiceMemory
from sglang_operator.reconcile.queue import WorkQueue
from sglang_operator.status.observation import MetricsFacts
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import Evidence, gather, unavailable
from sglang_operator.tuning.policy import Outcome, decide
from sglang_operator.tuning.samples import MetricsSnapshot

logger = logging.getLogger(__name__)

_NO_PROMETHEUS = unavailable(Reason.NOT_CONFIGURED, "The operator has no address of a Prometheus.")


@dataclass(frozen=True, kw_only=True)
class TuningLoop:
    """Decides. `metrics` is None when no Prometheus is configured: then every threshold stays where it is."""

    metrics: Metrics | None
    clock: Clock
    memory: Memory
    queue: WorkQueue
    limits: Limits
    max_age_seconds: int

    async def tick(self) -> bool:
        """Make one pass over all measured services; returns whether metrics were needed and had, or not needed."""
        services = self.memory.measured()
        if not services:
            return True
        if self.metrics is None:
            for key, service, policy in services:
                self._decide(key, service, policy, _NO_PROMETHEUS)
            return True
        try:
            snapshot = await self.metrics.snapshot()
        except MetricsError as error:
            logger.warning("no metrics, thresholds stay as they are: %s", error)
            for key, service, policy in services:
                last = service.metrics.last_good_at if service.metrics else None
                self._decide(key, service, policy, unavailable(error.reason, str(error), last_sample_at=last))
            return False
        for key, service, policy in services:
            self._decide(key, service, policy, self._evidence(key, service, snapshot))
        return True

    def _evidence(self, key: ServiceKey, service: ServiceMemory, snapshot: MetricsSnapshot) -> Evidence:
        return gather(
            snapshot,
            namespace=key.namespace,
            pods=service.pods,
            now=self.clock.now(),
            max_age_seconds=self.max_age_seconds,
            last_sample_at=service.metrics.last_good_at if service.metrics else None,
        )

    def _decide(self, key: ServiceKey, service: ServiceMemory, policy: DisableThreshold, evidence: Evidence) -> None:
        freshness = evidence.freshness
        known = service.metrics
        service.metrics = MetricsFacts(
            reason=freshness.reason, message=freshness.message, last_good_at=freshness.newest_sample_at
        )
        if known is None or known.reason is not freshness.reason:
            self.queue.add(key)
        if service.decision is None:
            return
        verdict = decide(policy, evidence, service.decision, self.clock.now(), self.limits, service.tuner)
        service.tuner = verdict.state
        if verdict.outcome is Outcome.MOVED:
            logger.info("%s: threshold %s: %s", key, verdict.decision.batch_size, verdict.message)
        else:
            logger.debug("%s: threshold stays (%s): %s", key, verdict.outcome, verdict.message)
        if verdict.decision != service.decision:
            service.decision = verdict.decision
            self.queue.add(key)

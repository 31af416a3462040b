"""One pass over one InferenceService: look at everything, bring it one step nearer to the spec, say so in the status.

A pass is level-triggered and idempotent: it takes nothing from the event that caused it, and a pass over a service
that is as it should be writes nothing. There is one status write at most, and events follow only after it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sglang_operator.adapters.ports import ChildKind, Clock, Cluster
from sglang_operator.api import names
from sglang_operator.api.decision import Decision
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import Algorithm, InferenceService, Manifest, ThresholdMode
from sglang_operator.errors import ClusterError, ClusterForbidden, SpecError
from sglang_operator.reconcile.apikeys import KeyRing
from sglang_operator.reconcile.children import Children, apply_children, delete_stale, pinned_patch, read_children
from sglang_operator.reconcile.decision import current_decision
from sglang_operator.reconcile.memory import Memory, ServiceMemory
from sglang_operator.reconcile.resource import previous_status, read_resource
from sglang_operator.reconcile.threshold import Synchronizer, servers
from sglang_operator.render.desired import Rendered, render
from sglang_operator.render.enginepatch import PatchArchive
from sglang_operator.render.network import read_decision, service_name, threshold_name
from sglang_operator.status.observation import (
    ApplyFailure,
    MetricsFacts,
    Observation,
    PodThreshold,
    SpecRefusal,
    observe_deployment,
    observe_pod,
)
from sglang_operator.status.summary import build_status, events

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Time to the next pass while something is known to be unfinished and no event will tell of its end."""
LONGEST_RETRY_SECONDS: Final = 30.0
"""The time doubles up to this, so that servers that hang don't keep the workers from other services."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a pass is going to bring about. Without `rendered`, the spec was refused and nothing is written."""

    service: InferenceService | None
    decision: Decision | None
    rendered: Rendered | None
    refusal: SpecRefusal | None


@dataclass(frozen=True, kw_only=True)
class ServiceReconciler:
    """Makes passes. `patch`: the engine patch of this operator; `metrics_configured`: whether Prometheus is known."""

    cluster: Cluster
    clock: Clock
    synchronizer: Synchronizer
    memory: Memory
    patch: PatchArchive
    metrics_configured: bool

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Make one pass; returns the seconds after which another is wanted, or None to wait for an event.

        Raises:
            ClusterError: the cluster could not be read, or the status not be written.
        """
        stored = await self.cluster.get_service(key)
        if stored is None or stored["metadata"].get("deletionTimestamp"):
            self.memory.forget(key)
            return None
        memory = self.memory.of(key)
        children = await read_children(self.cluster, key)
        plan = self._plan(stored, children, memory)
        failure = await self._apply(key, plan, children)
        thresholds = await self._synchronize(memory, plan, children)
        await self._report(stored, self._observe(key, plan, children, memory, failure, thresholds))
        unsynced = plan.decision is not None and any(not pod.follows(plan.decision) for pod in thresholds)
        memory.unfinished_passes = memory.unfinished_passes + 1 if failure or unsynced else 0
        return _retry_seconds(memory.unfinished_passes)

    def _plan(self, stored: Manifest, children: Children, memory: ServiceMemory) -> Plan:
        service: InferenceService | None = None
        persisted = _persisted_decision(stored["metadata"]["name"], children)
        decision = memory.decision or persisted
        try:
            service = read_resource(stored)
            decision = self._decide(service, memory, persisted)
            rendered = render(service, decision=decision, patch=self.patch, pinned=pinned_patch(children, service.name))
        except SpecError as error:
            refusal = SpecRefusal(reason=error.reason, message=str(error))
            return Plan(service=service, decision=decision, rendered=None, refusal=refusal)
        return Plan(service=service, decision=decision, rendered=rendered, refusal=None)

    def _decide(self, service: InferenceService, memory: ServiceMemory, persisted: Decision | None) -> Decision | None:
        speculation = service.spec.speculation
        if speculation.algorithm is Algorithm.NONE:
            memory.policy, memory.decision = None, None
            return None
        memory.policy = speculation.disable_threshold
        memory.decision = current_decision(
            memory.policy, remembered=memory.decision, persisted=persisted, now=self.clock.now()
        )
        return memory.decision

    async def _apply(self, key: ServiceKey, plan: Plan, children: Children) -> ApplyFailure | None:
        if plan.rendered is None:
            return None
        failures = await apply_children(self.cluster, plan.rendered, children)
        if not failures:
            try:
                await delete_stale(self.cluster, key, plan.rendered, children)
            except ClusterError as error:
                return _failure([(ChildKind.CONFIG_MAP.value, error)], boot_value_only=False)
            return None
        boot_value = threshold_name(key.name)
        only = all(name == boot_value for name, _ in failures)
        return _failure(failures, boot_value_only=only)

    async def _synchronize(self, memory: ServiceMemory, plan: Plan, children: Children) -> tuple[PodThreshold, ...]:
        memory.pods = frozenset(
            pod["metadata"]["name"] for pod in children.pods if not pod["metadata"].get("deletionTimestamp")
        )
        if plan.decision is None:
            return ()
        return await self.synchronizer.synchronize(memory, servers(children.pods), plan.decision, KeyRing(self.cluster))

    def _observe(
        self,
        key: ServiceKey,
        plan: Plan,
        children: Children,
        memory: ServiceMemory,
        failure: ApplyFailure | None,
        thresholds: tuple[PodThreshold, ...],
    ) -> Observation:
        spec = plan.service.spec if plan.service else None
        return Observation(
            selector=f"{names.LABEL_SERVICE}={key.name}",
            url=_url(plan.service) if plan.service else None,
            desired_replicas=spec.replicas if spec else None,
            speculates=spec.speculation.algorithm is not Algorithm.NONE if spec else None,
            off_path=spec.speculation.off_path if spec else None,
            revision=plan.rendered.revision if plan.rendered else None,
            patch_digest=plan.rendered.patch_digest if plan.rendered else None,
            spec_error=plan.refusal,
            apply_error=failure,
            workload=observe_deployment(children.deployments[0] if children.deployments else None),
            pods=tuple(observe_pod(pod) for pod in children.pods),
            decision=plan.decision,
            thresholds=thresholds,
            metrics=self._metrics(plan, memory),
        )

    def _metrics(self, plan: Plan, memory: ServiceMemory) -> MetricsFacts | None:
        if plan.service is None:
            return memory.metrics
        speculation = plan.service.spec.speculation
        measured = (
            speculation.algorithm is not Algorithm.NONE and speculation.disable_threshold.mode is ThresholdMode.AUTO
        )
        if not measured:
            return MetricsFacts(reason=Reason.NOT_USED)
        if not self.metrics_configured:
            return MetricsFacts(reason=Reason.NOT_CONFIGURED)
        return memory.metrics

    async def _report(self, stored: Manifest, observation: Observation) -> None:
        previous = previous_status(stored)
        current = build_status(observation, previous, stored["metadata"]["generation"], self.clock.now())
        if current == previous:
            return
        key = ServiceKey(stored["metadata"]["namespace"], stored["metadata"]["name"])
        await self.cluster.apply_status(key, current.model_dump(mode="json", by_alias=True, exclude_none=True))
        for line in events(previous, current):
            logger.info("%s: %s: %s", key, line.reason, line.message)
            await self.cluster.record_event(stored, line)


def _retry_seconds(unfinished_passes: int) -> float | None:
    if not unfinished_passes:
        return None
    return min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(unfinished_passes - 1, 10))


def _url(service: InferenceService) -> str:
    return f"http://{service_name(service.name)}.{service.namespace}.svc:{service.spec.engine.port}"


def _persisted_decision(name: str, children: Children) -> Decision | None:
    config_map = children.find(ChildKind.CONFIG_MAP, threshold_name(name))
    return read_decision(config_map) if config_map else None


def _failure(failures: Sequence[tuple[str, ClusterError]], *, boot_value_only: bool) -> ApplyFailure:
    forbidden = any(isinstance(error, ClusterForbidden) for _, error in failures)
    return ApplyFailure(
        reason=Reason.OPERATOR_FORBIDDEN if forbidden else Reason.APPLY_FAILED,
        message=str(failures[0][1]),
        boot_value_only=boot_value_only,
    )

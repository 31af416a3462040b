"""The whole status of one service, built once a pass; written only when it differs from what is stored."""

from __future__ import annotations

from datetime import datetime

from sglang_operator.api.v1alpha1 import InferenceServiceStatus, ThresholdStatus
from sglang_operator.status.conditions import conditions
from sglang_operator.status.events import EventLine, events
from sglang_operator.status.observation import Observation
from sglang_operator.status.offpath import RunningOffPath, running
from sglang_operator.status.text import cut, one_line, rfc3339
from sglang_operator.status.thresholds import synced_pods

__all__ = ["EventLine", "build_status", "events"]

_DECISION_BYTES = 1024
_RELEASE_LETTERS = 64
_OFF_PATH_LETTERS = 64


def build_status(
    observation: Observation, previous: InferenceServiceStatus | None, generation: int, now: datetime
) -> InferenceServiceStatus:
    """Build the status from one observation.

    What the observation doesn't know keeps its previous value: release and off path while no pod tells them, revision,
    address and threshold while the spec is refused, the counts while the pods were not listed. The same facts
    give an equal status, so that an idle service causes no write.
    """
    judged = conditions(observation, previous.conditions if previous else (), generation, now)
    replicas, ready_replicas, updated_replicas = _counts(observation, previous)
    return InferenceServiceStatus(
        observed_generation=generation,
        replicas=replicas,
        ready_replicas=ready_replicas,
        updated_replicas=updated_replicas,
        selector=observation.selector,
        revision=observation.revision or (previous.revision if previous else None),
        engine_release=_release(observation) or (previous.engine_release if previous else None),
        patch_digest=observation.patch_digest or (previous.patch_digest if previous else None),
        url=observation.url or (previous.url if previous else None),
        threshold=_threshold(observation, previous),
        conditions=list(judged),
    )


def _counts(observation: Observation, previous: InferenceServiceStatus | None) -> tuple[int, int, int]:
    """Pods that exist, that answer, and that have the declared revision."""
    if observation.pods is not None:
        active = observation.active_pods
        return len(active), len(observation.answering_pods), len(observation.current_pods)
    if observation.workload is not None:
        workload = observation.workload
        return workload.replicas, workload.ready_replicas, workload.updated_replicas
    if previous is not None:
        return previous.replicas, previous.ready_replicas, previous.updated_replicas
    return 0, 0, 0


def _release(observation: Observation) -> str | None:
    """SGLang's release by the word of the patch in the pods, current ones first, else by the servers' own."""
    for pods in (observation.current_pods, observation.answering_pods):
        if told := {pod.patch_result.release for pod in pods if pod.patch_result and pod.patch_result.release}:
            return ", ".join(sorted(told))[:_RELEASE_LETTERS]
    told = {item.release for item in observation.thresholds if item.release}
    return ", ".join(sorted(told))[:_RELEASE_LETTERS] or None


def _threshold(observation: Observation, previous: InferenceServiceStatus | None) -> ThresholdStatus | None:
    if observation.speculates is False:
        return None
    decision = observation.decision
    if decision is None:
        return previous.threshold if previous else None
    off = running(observation)
    if off.path is None and previous is not None and previous.threshold is not None:
        off = RunningOffPath(path=previous.threshold.off_path, reason=previous.threshold.off_path_reason)
    return ThresholdStatus(
        batch_size=decision.batch_size,
        source=decision.source,
        decided_at=rfc3339(decision.decided_at),
        message=cut(one_line(decision.message), _DECISION_BYTES),
        evidence=decision.evidence,
        synced_pods=synced_pods(observation, decision.batch_size),
        off_path=off.path and off.path[:_OFF_PATH_LETTERS],
        off_path_reason=off.reason and cut(off.reason, _DECISION_BYTES),
    )

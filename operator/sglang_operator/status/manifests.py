"""Reading pods and Deployments, as the API server hands them over, into facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.status.facts import (
    ContainerFacts,
    ContainerState,
    Placement,
    PodFacts,
    Termination,
    WorkloadFacts,
)
from sglang_operator.status.patchresult import PatchResult, judge
from sglang_operator.status.text import hide_api_keys, one_line, parse_rfc3339

_DEFAULT_PROBE_PERIOD_SECONDS = 10
_DEFAULT_PROBE_FAILURES = 3
_DEFAULT_GRACE_SECONDS = 30
_OPERATORS = {"Gt": ">", "Lt": "<"}


def observe_pod(manifest: Manifest) -> PodFacts:
    """Read one pod; fields that the kubelet or the scheduler hasn't filled yet keep their defaults."""
    metadata, spec, status = (_mapping(manifest, part) for part in ("metadata", "spec", "status"))
    patch = _container(spec, status, "initContainers", "initContainerStatuses", names.CONTAINER_PATCH)
    engine = _container(spec, status, "containers", "containerStatuses", names.CONTAINER_ENGINE)
    engine_spec = _named(spec.get("containers"), names.CONTAINER_ENGINE)
    readiness = _condition(status, "Ready")
    return PodFacts(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        ip=status.get("podIP") or None,
        revision=_mapping(metadata, "annotations").get(names.ANNOTATION_REVISION),
        deleting=metadata.get("deletionTimestamp") is not None,
        phase=str(status.get("phase", "Pending")),
        failure_reason=str(status.get("reason", "")),
        failure_message=one_line(str(status.get("message", ""))),
        placement=_placement(status),
        ready=readiness.get("status") == "True",
        ready_message=one_line(str(readiness.get("message", ""))),
        ready_since=parse_rfc3339(readiness.get("lastTransitionTime")),
        patch=patch,
        patch_result=_patch_result(patch) if patch else None,
        engine=engine or ContainerFacts(),
        startup_budget_seconds=_startup_budget_seconds(engine_spec),
        termination_grace_seconds=int(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)),
        extended_resources=_extended_resources(engine_spec),
        node_requirements=_node_requirements(spec),
    )


def observe_deployment(manifest: Manifest | None) -> WorkloadFacts:
    """Read the Deployment; None: it doesn't exist."""
    if manifest is None:
        return WorkloadFacts(exists=False)
    metadata, spec, status = (_mapping(manifest, part) for part in ("metadata", "spec", "status"))
    template = _mapping(_mapping(spec, "template"), "metadata")
    progress = _condition(status, "Progressing")
    failure = _condition(status, "ReplicaFailure")
    return WorkloadFacts(
        exists=True,
        desired_replicas=int(spec.get("replicas", 1)),
        replicas=int(status.get("replicas", 0)),
        updated_replicas=int(status.get("updatedReplicas", 0)),
        ready_replicas=int(status.get("readyReplicas", 0)),
        revision=_mapping(template, "annotations").get(names.ANNOTATION_REVISION),
        observed=int(status.get("observedGeneration", 0)) >= int(metadata.get("generation", 0)),
        progress_deadline_exceeded=progress.get("status") == "False"
        and progress.get("reason") == "ProgressDeadlineExceeded",
        replica_failure=one_line(str(failure.get("message", ""))) if failure.get("status") == "True" else "",
    )


def _mapping(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _named(value: object, name: str) -> Mapping[str, Any]:
    return next((item for item in _items(value) if item.get("name") == name), {})


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((item for item in _items(status.get("conditions")) if item.get("type") == kind), {})


def _placement(status: Mapping[str, Any]) -> Placement:
    condition = _condition(status, "PodScheduled")
    if not condition:
        return Placement()
    return Placement(
        scheduled=condition.get("status") == "True",
        reason=str(condition.get("reason", "")),
        message=one_line(str(condition.get("message", ""))),
        since=parse_rfc3339(condition.get("lastTransitionTime")),
    )


def _container(
    spec: Mapping[str, Any], status: Mapping[str, Any], spec_list: str, status_list: str, name: str
) -> ContainerFacts | None:
    declared = _named(spec.get(spec_list), name)
    if not declared:
        return None
    seen = _named(status.get(status_list), name)
    state = _mapping(seen, "state")
    waiting, running = _mapping(state, "waiting"), _mapping(state, "running")
    return ContainerFacts(
        state=_container_state(state),
        waiting_reason=str(waiting.get("reason", "")),
        waiting_message=one_line(str(waiting.get("message", ""))),
        running_since=parse_rfc3339(running.get("startedAt")),
        started=seen.get("started") is True,
        ready=seen.get("ready") is True,
        restarts=int(seen.get("restartCount", 0)),
        termination=_termination(state),
        last_termination=_termination(_mapping(seen, "lastState")),
        memory_limit=_mapping(_mapping(declared, "resources"), "limits").get("memory"),
    )


def _container_state(state: Mapping[str, Any]) -> ContainerState:
    for key, value in (
        ("terminated", ContainerState.TERMINATED),
        ("running", ContainerState.RUNNING),
        ("waiting", ContainerState.WAITING),
    ):
        if state.get(key) is not None:
            return value
    return ContainerState.UNSEEN


def _termination(state: Mapping[str, Any]) -> Termination | None:
    ended = state.get("terminated")
    if not isinstance(ended, Mapping):
        return None
    return Termination(
        exit_code=int(ended.get("exitCode", 0)),
        reason=str(ended.get("reason", "")),
        message=hide_api_keys(str(ended.get("message", ""))),
        started_at=parse_rfc3339(ended.get("startedAt")),
        finished_at=parse_rfc3339(ended.get("finishedAt")),
    )


def _patch_result(patch: ContainerFacts) -> PatchResult | None:
    ended = patch.latest_end
    if ended is None:
        return None
    result = judge(
        exit_code=ended.exit_code,
        termination_reason=ended.reason,
        message=ended.message,
        memory_limit=patch.memory_limit,
    )
    # A success counts only while it stands: after a restart of the pod's sandbox the patch runs again.
    return result if patch.state is ContainerState.TERMINATED or not result.succeeded else None


def _startup_budget_seconds(engine_spec: Mapping[str, Any]) -> int | None:
    probe = _mapping(engine_spec, "startupProbe")
    if not probe:
        return None
    period = int(probe.get("periodSeconds", _DEFAULT_PROBE_PERIOD_SECONDS))
    failures = int(probe.get("failureThreshold", _DEFAULT_PROBE_FAILURES))
    return int(probe.get("initialDelaySeconds", 0)) + period * failures


def _extended_resources(engine_spec: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    limits = _mapping(_mapping(engine_spec, "resources"), "limits")
    return tuple(sorted((name, str(amount)) for name, amount in limits.items() if "/" in name))


def _node_requirements(spec: Mapping[str, Any]) -> str:
    """Write the labels that a node must have, from the selector and the required affinity, as people would."""
    selector = [f"{key} = {value}" for key, value in _mapping(spec, "nodeSelector").items()]
    required = _mapping(
        _mapping(_mapping(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = [
        ", ".join(_requirement(expression) for expression in _items(term.get("matchExpressions")))
        for term in _items(required.get("nodeSelectorTerms"))
    ]
    affinity = " or ".join(term for term in terms if term)
    return ", ".join([*selector, *([affinity] if affinity else [])])


def _requirement(expression: Mapping[str, Any]) -> str:
    key, operator = str(expression.get("key", "")), str(expression.get("operator", ""))
    values = [str(value) for value in expression.get("values") or ()]
    if operator in _OPERATORS:
        return f"{key} {_OPERATORS[operator]} {' '.join(values)}"
    if operator in {"In", "NotIn"}:
        word = "in" if operator == "In" else "not in"
        return f"{key} {word} ({', '.join(values)})"
    return f"{key} present" if operator == "Exists" else f"{key} absent"

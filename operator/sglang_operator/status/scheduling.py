"""The condition `Scheduled`: the scheduler's and the admission controllers' words, turned into cause and next step.

The scheduler gives one reason a node, the first check that the node fails: taints, then labels, then free
resources. So a node that lacks GPUs has the right labels, and that tells more than the nodes that lack labels.
"""

from __future__ import annotations

import re

from sglang_operator.api.reasons import Reason
from sglang_operator.status.diagnosis import rejection
from sglang_operator.status.facts import PodFacts
from sglang_operator.status.observation import Observation
from sglang_operator.status.text import paragraph, pods, sentence, share
from sglang_operator.status.verdict import Verdict, false, true, unknown

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9][A-Za-z0-9./_-]*[A-Za-z0-9])")
_TAINT = re.compile(r"untolerated taint(?:\(s\))?(?: \{([^}]*)\})?|taints? that the pod didn't tolerate")
_LABELS = re.compile(r"didn't match Pod's node affinity/selector|didn't match node selector|no nodes available")
_VOLUME = re.compile(r"persistent ?volume|volume node affinity|volume zone|pvc", re.IGNORECASE)
_NOT_PEOPLES_TAINTS = ("node-role.kubernetes.io/", "node.kubernetes.io/")
_PREEMPTION = re.compile(r"\s*preemption: .*$", re.DOTALL)
_REFUSED_POD_NAME = re.compile(r'^pods? "[^"]*" is forbidden: ')

_MOST_TELLING_FIRST = (
    Reason.INSUFFICIENT_GPUS,
    Reason.UNTOLERATED_TAINT,
    Reason.NO_MATCHING_NODE,
    Reason.PODS_PENDING,
)


def scheduled(observation: Observation) -> Verdict:
    """Decide `Scheduled`: every pod of the judged revision has a node."""
    if observation.pods is None or observation.workload is None or observation.desired is None:
        return unknown(Reason.NOT_OBSERVED, "The pods were not looked at yet.")
    if observation.desired == 0:
        return true(Reason.SCALED_TO_ZERO, "No pod is asked for, so none needs a node.")
    current = observation.current_pods
    failure = observation.workload.replica_failure
    if failure and len(current) < observation.desired:
        return _refused(failure)
    refused = [_unschedulable(pod) for pod in current if pod.placement.scheduled is False]
    if refused:
        return min(refused, key=lambda verdict: _MOST_TELLING_FIRST.index(verdict.reason))
    return _counted(observation, current, observation.desired)


def _counted(observation: Observation, current: tuple[PodFacts, ...], desired: int) -> Verdict:
    placed = sum(1 for pod in current if pod.placement.scheduled)
    if placed >= desired:
        return true(Reason.PODS_SCHEDULED, f"{share(desired, desired, 'has')} a node.")
    leaving = sum(1 for pod in observation.pods or () if pod.deleting)
    waiting = f"GPUs are still held by {pods(leaving)} being stopped." if leaving else ""
    rejected = rejection(observation.pods or ()) if not current else ""
    return unknown(
        Reason.PODS_PENDING,
        paragraph(f"{share(placed, desired, 'has')} a node.", waiting, rejected),
    )


def _refused(failure: str) -> Verdict:
    cause = sentence(_REFUSED_POD_NAME.sub("", failure))
    if "exceeded quota" in failure or "failed quota" in failure:
        step = "Ask for less, or have the namespace's ResourceQuota raised."
        return false(Reason.QUOTA_EXCEEDED, f"The namespace's quota allows no pod: {cause} {step}")
    return false(Reason.POD_REFUSED, f"The cluster refuses the pod: {cause} {_refusal_step(failure)}")


def _refusal_step(failure: str) -> str:
    if "PodSecurity" in failure:
        return "Correct podTemplate.securityContext, or label the namespace for a less strict PodSecurity level."
    if "serviceaccount" in failure:
        return "Create the service account, or correct podTemplate.serviceAccountName."
    if "PriorityClass" in failure:
        return "Create the priority class, or correct podTemplate.priorityClassName."
    if "usage per" in failure or "limit to request ratio" in failure:
        return "Correct engine.resources, or the namespace's LimitRange."
    return "Correct the spec, or ask whoever runs the cluster's admission rules."


def _unschedulable(pod: PodFacts) -> Verdict:
    said = f"Scheduler: {sentence(_PREEMPTION.sub('', pod.placement.message))}" if pod.placement.message else ""
    reason, text = _cause(pod)
    return false(reason, paragraph(f"Pod {pod.name}: {text}", said))


def _cause(pod: PodFacts) -> tuple[Reason, str]:
    message = _PREEMPTION.sub("", pod.placement.message)
    if pod.placement.reason == "SchedulingGated":
        return Reason.PODS_PENDING, "scheduling gates hold it back; the queue that set them must let it go."
    short = set(_INSUFFICIENT.findall(message))
    for name, amount in pod.extended_resources:
        if name in short:
            return (
                Reason.INSUFFICIENT_GPUS,
                f"no node that fits has {amount} {name} free. Free GPUs, add a node, or lower gpus.count.",
            )
    taints = [match.group(1) or "" for match in _TAINT.finditer(message)]
    labels_missing = _LABELS.search(message) is not None
    if _taint_tells_most(taints, labels_missing):
        return Reason.UNTOLERATED_TAINT, _taint_text(pod, taints)
    if labels_missing:
        return Reason.NO_MATCHING_NODE, _labels_text(pod, tainted=bool(taints))
    return Reason.PODS_PENDING, _other_cause(message, short)


def _taint_tells_most(taints: list[str], labels_missing: bool) -> bool:
    """Whether a taint is to blame, not the labels.

    Schedulers since 1.37 don't name the taint. Most clusters have tainted control planes, so a taint without a
    name says little where other nodes failed by their labels.
    """
    blamed = [taint for taint in taints if not taint.startswith(_NOT_PEOPLES_TAINTS)]
    return any(blamed) or (bool(blamed) and not labels_missing)


def _labels_text(pod: PodFacts, *, tainted: bool) -> str:
    asked = f": {pod.node_requirements}" if pod.node_requirements else ""
    skipped = " Nodes with taints that it doesn't tolerate were left out." if tainted else ""
    return (
        f"no node has the labels asked for{asked}. Label the nodes (GPU feature discovery does), or correct gpus and "
        f"podTemplate.nodeSelector.{skipped}"
    )


def _taint_text(pod: PodFacts, taints: list[str]) -> str:
    named = sorted({taint for taint in taints if taint and not taint.startswith(_NOT_PEOPLES_TAINTS)})
    which = f" {', '.join(f'{{{taint}}}' for taint in named)}" if named else ""
    labels = f" Other nodes must have the labels {pod.node_requirements}." if pod.node_requirements else ""
    return (
        f"nodes have taints{which} that it doesn't tolerate. Add them to podTemplate.tolerations, or take them off "
        f"the nodes.{labels}"
    )


def _other_cause(message: str, short: set[str]) -> str:
    if short:
        return f"no node that fits has enough {', '.join(sorted(short))} free. Correct engine.resources, or add a node."
    if _VOLUME.search(message):
        return "a volume can't be had. Check model.cache.claimName and podTemplate.volumes."
    if "unschedulable" in message or _TAINT.search(message):
        return "the nodes that fit are cordoned or not healthy. Look at `kubectl get nodes`."
    return "no node takes it."

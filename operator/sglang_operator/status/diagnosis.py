"""One pod, one diagnosis: the first step on the way to answering that it has not taken.

The way of a pod: a node is found, its containers are made, the patch runs, the server starts, the server answers.
The kubelet shows a container that fails in three changing faces (terminated, waiting, running again), so every
face of the same trouble must give the same finding, or conditions would flap.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from sglang_operator.api.reasons import Reason
from sglang_operator.status.crashhints import hint_for
from sglang_operator.status.facts import ContainerFacts, ContainerState, PodFacts, Termination
from sglang_operator.status.finding import Finding
from sglang_operator.status.text import elapsed, paragraph, sentence, tail, whole_minutes
from sglang_operator.status.verdict import Wording
from sglang_operator.status.waiting import trouble_of_waiting

CREATION_PATIENCE = timedelta(minutes=30)
"""Containers not made after this time need a person; pulling a large image takes many minutes."""
ANSWER_PATIENCE = timedelta(minutes=10)
"""A started server that doesn't answer for this long needs a person."""
CRASHES_OF_A_LOOP = 2
_KILL_SLACK = timedelta(seconds=60)
_KILLED_EXIT_CODES = frozenset({137, 143})


def diagnose(pod: PodFacts, now: datetime) -> Finding | None:
    """Say why an active pod doesn't answer; None when it does."""
    if pod.answers:
        return None
    if not pod.placement.scheduled:
        return _finding(pod, Reason.PODS_PENDING, "waits for a node.")
    if pod.patch is not None and not (pod.patch_result and pod.patch_result.succeeded):
        return _patch_finding(pod, pod.patch, now)
    return _engine_finding(pod, now)


def rejection(pods: Iterable[PodFacts]) -> str:
    """Say why pods ended before they could run: a node may refuse one that the scheduler gave it.

    The Deployment makes a new pod at once, often in vain, so the pods are not named: their names change all the time.
    """
    causes = {(pod.failure_reason, pod.failure_message) for pod in pods if pod.ended and pod.failure_reason}
    if not causes:
        return ""
    reason, message = min(causes)
    return paragraph(f"A pod ended as {reason}.", sentence(message))


def _patch_finding(pod: PodFacts, patch: ContainerFacts, now: datetime) -> Finding:
    if pod.patch_result is not None:
        result = pod.patch_result
        return _finding(pod, result.reason, result.message, needs_person=True, wording=Wording.LOG)
    if trouble := trouble_of_waiting(patch):
        return _finding(pod, trouble.reason, trouble.message, needs_person=True, wording=trouble.wording)
    if patch.state is ContainerState.RUNNING:
        lasting = elapsed(patch.running_since, now)
        return _finding(pod, Reason.PATCH_PENDING, f"SGLang's sources are being patched and checked for {lasting}.")
    return _creating(pod, Reason.PATCH_PENDING, now)


def _engine_finding(pod: PodFacts, now: datetime) -> Finding:
    engine = pod.engine
    if trouble := trouble_of_waiting(engine):
        return _finding(pod, trouble.reason, trouble.message, needs_person=True, wording=trouble.wording)
    if engine.started and engine.state is ContainerState.RUNNING:
        return _not_answering(pod, now)
    if engine.latest_end is not None and (crash := _crash(pod, engine.latest_end)):
        return crash
    if engine.state is ContainerState.RUNNING:
        return _loading(pod, now)
    if engine.latest_end is not None:
        return _finding(pod, Reason.STARTING, f"the server is being restarted. {_end(engine.latest_end)}")
    return _creating(pod, Reason.STARTING, now)


def _crash(pod: PodFacts, ended: Termination) -> Finding | None:
    if ended.reason == "OOMKilled":
        return _finding(pod, Reason.OOM_KILLED, _out_of_memory(pod.engine), needs_person=True)
    if _overran(pod, ended):
        minutes = (pod.startup_budget_seconds or 0) // 60
        return _finding(
            pod,
            Reason.START_STALLED,
            f"the server was stopped since it did not answer within {minutes} min. If it only needs longer, raise "
            "engine.startupTimeoutSeconds; if its log stands still, check the GPUs' links (P2P, IOMMU).",
            needs_person=True,
        )
    if pod.engine.ended_runs >= CRASHES_OF_A_LOOP and _ended_early(pod, ended):
        return _finding(
            pod,
            Reason.CRASH_LOOP,
            f"the server stops again and again before it answers. {_end(ended)}",
            needs_person=True,
            wording=Wording.LOG,
        )
    return None


def _out_of_memory(engine: ContainerFacts) -> str:
    limit = f" at its limit of {engine.memory_limit}" if engine.memory_limit else ", the node's own being used up"
    return (
        f"the server was killed for memory{limit}. Raise engine.resources.memoryLimit; "
        "engine.sharedMemorySize counts against it."
    )


def _end(ended: Termination) -> str:
    excerpt = tail(ended.message)
    return paragraph(
        f"Its last run ended with code {ended.exit_code}.",
        hint_for(ended.message) or "Read its log with `kubectl logs --previous`.",
        f"Its last words: {excerpt}" if excerpt else "",
    )


def _overran(pod: PodFacts, ended: Termination) -> bool:
    """Whether the kubelet stopped a run at the end of its start budget, by its length and exit code."""
    budget = _budget(pod)
    if budget is None or ended.ran is None or ended.exit_code not in _KILLED_EXIT_CODES:
        return False
    return budget <= ended.ran <= budget + timedelta(seconds=pod.termination_grace_seconds) + _KILL_SLACK


def _ended_early(pod: PodFacts, ended: Termination) -> bool:
    """Whether a run can't have answered for long: a run longer than its start budget must have answered."""
    budget = _budget(pod)
    return budget is None or ended.ran is None or ended.ran < budget


def _budget(pod: PodFacts) -> timedelta | None:
    return None if pod.startup_budget_seconds is None else timedelta(seconds=pod.startup_budget_seconds)


def _loading(pod: PodFacts, now: datetime) -> Finding:
    budget = _budget(pod)
    allowed = f" of {whole_minutes(budget)} min allowed (engine.startupTimeoutSeconds)" if budget else ""
    text = f"the server has been loading for {elapsed(pod.engine.running_since, now)}{allowed}."
    earlier = _end(pod.engine.latest_end) if pod.engine.latest_end else ""
    return _finding(pod, Reason.STARTING, paragraph(text, earlier))


def _not_answering(pod: PodFacts, now: datetime) -> Finding:
    lasting = pod.ready_since is not None and now - pod.ready_since >= ANSWER_PATIENCE
    if pod.engine.ready:
        text = paragraph("the server runs, but the pod is not ready.", sentence(pod.ready_message))
    else:
        text = "the server started, but doesn't answer its readiness probe. Read its log, and its load."
    return _finding(pod, Reason.NOT_SERVING, text, needs_person=lasting)


def _creating(pod: PodFacts, reason: Reason, now: datetime) -> Finding:
    since = pod.placement.since
    if since is not None and now - since >= CREATION_PATIENCE:
        return _finding(
            pod,
            Reason.START_STALLED,
            f"its containers are not made after {whole_minutes(CREATION_PATIENCE)} min. Look at the pod's events for "
            "volumes that can't be mounted and images that take long to pull.",
            needs_person=True,
        )
    return _finding(pod, reason, f"its containers are being made for {elapsed(since, now)} (image, volumes).")


def _finding(
    pod: PodFacts, reason: Reason, text: str, *, needs_person: bool = False, wording: Wording = Wording.EXACT
) -> Finding:
    return Finding(
        pod=pod.name, reason=reason, message=f"Pod {pod.name}: {text}", needs_person=needs_person, wording=wording
    )

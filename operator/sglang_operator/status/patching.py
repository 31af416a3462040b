"""The condition `PatchVerified`: every pod of the judged revision proved its patch before its server started."""

from __future__ import annotations

from datetime import datetime

from sglang_operator.api.reasons import Reason
from sglang_operator.status.diagnosis import diagnose
from sglang_operator.status.facts import PodFacts
from sglang_operator.status.finding import PATCH_FAILURES, Finding, most_telling
from sglang_operator.status.observation import Observation
from sglang_operator.status.text import paragraph, pods
from sglang_operator.status.verdict import Verdict, false, true, unknown

_BEFORE_THE_PATCH_ENDS = frozenset(
    {
        Reason.PATCH_PENDING,
        Reason.PODS_PENDING,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG,
        Reason.START_STALLED,
    }
)


def patch_verified(observation: Observation, now: datetime) -> Verdict:
    """Decide `PatchVerified`. A pod of an older revision never speaks for the current one."""
    if observation.pods is None:
        return unknown(Reason.NOT_OBSERVED, "The pods were not looked at yet.")
    if observation.desired == 0:
        return unknown(Reason.SCALED_TO_ZERO, "No pod is asked for, so none runs the patch.")
    if observation.speculates is False:
        return true(Reason.PATCH_NOT_NEEDED, "Speculation is off, so the pods run SGLang as it is in their image.")
    current = observation.current_pods
    if not current:
        return unknown(Reason.PATCH_PENDING, "No pod of the current revision exists yet.")
    open_pods = [pod for pod in current if not _settled(pod)]
    findings = [finding for pod in open_pods if (finding := diagnose(pod, now))]
    refused = [finding for finding in findings if finding.reason in PATCH_FAILURES]
    if refused:
        return _refused(refused, len(current))
    if open_pods:
        return _pending(findings, done=len(current) - len(open_pods), total=len(current))
    return _verified(current)


def _settled(pod: PodFacts) -> bool:
    """Whether the patch succeeded, or there is none to run."""
    return pod.patch is None or (pod.patch_result is not None and pod.patch_result.succeeded)


def _refused(refused: list[Finding], total: int) -> Verdict:
    worst = most_telling(refused)
    assert worst is not None
    others = f" The same or another refusal on {pods(len(refused) - 1)} more." if len(refused) > 1 < total else ""
    return false(worst.reason, paragraph(worst.message, others.strip()), worst.wording)


def _pending(findings: list[Finding], *, done: int, total: int) -> Verdict:
    worst = most_telling(finding for finding in findings if finding.reason in _BEFORE_THE_PATCH_ENDS)
    if worst is None:
        return unknown(Reason.PATCH_PENDING, f"The patch has not ended in {pods(total - done)} of {total}.")
    reason = Reason.PATCH_PENDING if worst.reason is Reason.PODS_PENDING else worst.reason
    count = f" The patch is verified in {done} of {pods(total)}." if done else ""
    return unknown(reason, worst.message + count, worst.wording)


def _verified(current: tuple[PodFacts, ...]) -> Verdict:
    results = [pod.patch_result for pod in current if pod.patch_result is not None]
    if not results:
        return true(Reason.PATCH_NOT_NEEDED, "Speculation is off, so the pods run SGLang as it is in their image.")
    releases = sorted({result.release for result in results if result.release})
    what = f"SGLang {' and '.join(releases)}" if releases else "SGLang"
    return true(Reason.PATCHED, f"{what}: patched, and its import checked, in {pods(len(results))}.")

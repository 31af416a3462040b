"""The conditions `Serving` (any revision answers) and `UpToDate` (the declared revision everywhere)."""

from __future__ import annotations

from datetime import datetime

from sglang_operator.api.reasons import Reason
from sglang_operator.status.diagnosis import diagnose, rejection
from sglang_operator.status.facts import PodFacts
from sglang_operator.status.finding import PATCH_FAILURES, Finding, most_telling
from sglang_operator.status.observation import Observation
from sglang_operator.status.text import paragraph, pods, sentence, share
from sglang_operator.status.verdict import Verdict, Wording, false, true, unknown

_STARTING = frozenset({Reason.PATCH_PENDING, Reason.STARTING})


def serving(observation: Observation, now: datetime) -> Verdict:
    """Decide `Serving`: at least one pod, of whatever revision, takes requests."""
    if observation.pods is None:
        return unknown(Reason.NOT_OBSERVED, "The pods were not looked at yet.")
    answering = len(observation.answering_pods)
    if answering:
        older = sum(1 for pod in observation.older_pods if pod.answers)
        note = f", {older} of them of an older revision" if older else ""
        return true(Reason.SERVING, f"{pods(answering)} {'answers' if answering == 1 else 'answer'}{note}.")
    if observation.desired == 0:
        return false(Reason.SCALED_TO_ZERO, "No pod is asked for. Set spec.replicas above 0 to serve.")
    worst = most_telling_of(observation.active_pods, now)
    if worst is None:
        return false(Reason.NOT_SERVING, paragraph("No pod exists yet.", rejection(observation.pods)))
    return false(_serving_reason(worst), f"No pod answers. {worst.message}", worst.wording)


def most_telling_of(candidates: tuple[PodFacts, ...], now: datetime) -> Finding | None:
    """Diagnose pods and pick the finding that tells most; None when all of them answer."""
    return most_telling(finding for pod in candidates if (finding := diagnose(pod, now)))


def _serving_reason(finding: Finding) -> Reason:
    if finding.reason in _STARTING:
        return Reason.STARTING
    if finding.reason in PATCH_FAILURES or finding.reason is Reason.PODS_PENDING:
        return Reason.NOT_SERVING
    return finding.reason


def up_to_date(observation: Observation, *, was_up_to_date: bool, now: datetime) -> Verdict:
    """Decide `UpToDate`: nothing of an older revision is left, and the declared one has answered everywhere once.

    Once true it stays so while pods of that revision crash, move or scale: that is for `Serving` and `Ready` to
    tell. It turns false only when something else is declared than what runs.
    """
    if observation.spec_error is not None:
        return false(
            spec_reason(observation.spec_error.reason),
            "The spec is refused, so nothing is rolled out. Pods that exist go on with the last spec that was valid.",
        )
    failure = observation.apply_error
    if failure is not None and not failure.boot_value_only:
        return false(failure.reason, sentence(failure.message), Wording.LOG)
    if observation.workload is None or observation.pods is None or observation.desired is None:
        return unknown(Reason.NOT_OBSERVED, "The pods were not looked at yet.")
    if observation.workload.revision != observation.revision:
        return false(Reason.ROLLING_OUT, "The Deployment does not have the declared revision yet.")
    if _current_everywhere(observation, was_up_to_date=was_up_to_date):
        return _current(observation)
    return _rolling_out(observation, now)


def spec_reason(reason: str) -> Reason:
    """The condition reason of a refused spec; an unlisted one becomes `InvalidSpec`."""
    try:
        return Reason(reason)
    except ValueError:
        return Reason.INVALID_SPEC


def _current_everywhere(observation: Observation, *, was_up_to_date: bool) -> bool:
    if observation.older_pods:
        return False
    answering = sum(1 for pod in observation.current_pods if pod.answers)
    if answering >= (observation.desired or 0):
        return True
    # A pod that is being replaced still stands for its revision, or an eviction would look like a rollout.
    present = [pod for pod in observation.pods or () if not pod.ended]
    return was_up_to_date and bool(present) and all(pod.revision == observation.revision for pod in present)


def _current(observation: Observation) -> Verdict:
    if observation.desired == 0:
        return true(Reason.CURRENT, "No pod is asked for, and none of an older revision is left.")
    return true(Reason.CURRENT, f"Revision {observation.revision} runs everywhere.")


def _rolling_out(observation: Observation, now: datetime) -> Verdict:
    current, older, desired = observation.current_pods, observation.older_pods, observation.desired or 0
    answering = sum(1 for pod in current if pod.answers)
    counts = f"Revision {observation.revision}: {share(answering, desired, 'answers')}."
    left = f"{pods(len(older))} of an older revision {'is' if len(older) == 1 else 'are'} left." if older else ""
    finding = most_telling_of(current, now)
    text = paragraph(counts, left, finding.message if finding else "")
    assert observation.workload is not None
    if observation.workload.progress_deadline_exceeded and observation.workload.observed:
        late = "The rollout made no progress within rollout.progressDeadlineSeconds."
        reason, text = Reason.PROGRESS_DEADLINE_EXCEEDED, paragraph(late, text)
    else:
        reason = Reason.ROLLING_OUT
    return false(reason, text, finding.wording if finding else Wording.EXACT)

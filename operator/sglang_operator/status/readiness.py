"""The condition `Ready`: every pod that is declared answers, on the declared revision.

A pod of an older revision that answers never makes `Ready` true: `Serving` tells that requests are still taken,
`Ready` tells whether what was declared is what serves. The threshold and the metrics have no part in it: a
server drafts too much or too little without them, but it serves.

The reason is the first entry that applies:

1. the spec is refused
2. facts are missing (`Unknown`)
3. no pod is asked for
4. objects can't be written
5. the cluster refuses the pod, or no node takes it
6. the patch is refused
7. a pod of the declared revision can't start, or crashes
8. the rollout is past its deadline
9. pods of an older revision serve, the declared one is on its way
10. nothing answers yet
11. some pods answer, some don't yet
12. all answer, but the patch or the rollout is not confirmed yet
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition
from sglang_operator.status.degraded import Settled
from sglang_operator.status.diagnosis import diagnose
from sglang_operator.status.finding import most_telling
from sglang_operator.status.observation import Observation
from sglang_operator.status.rollout import most_telling_of
from sglang_operator.status.text import paragraph, share
from sglang_operator.status.verdict import Verdict, Wording, false, true, unknown

_CANNOT_WRITE = frozenset({Reason.APPLY_FAILED, Reason.OPERATOR_FORBIDDEN})


def ready(observation: Observation, settled: Settled, now: datetime) -> Verdict:
    """Decide `Ready` from the facts and the other conditions of the same pass."""
    rules: tuple[Callable[[], Verdict | None], ...] = (
        lambda: _if_false(settled[ConditionType.SPEC_VALID]),
        lambda: _unknown_facts(observation),
        lambda: _scaled_to_zero(observation),
        lambda: _if_false(settled[ConditionType.UP_TO_DATE], _CANNOT_WRITE),
        lambda: _if_false(settled[ConditionType.SCHEDULED]),
        lambda: _if_false(settled[ConditionType.PATCH_VERIFIED]),
        lambda: _pod(observation, now),
        lambda: _if_false(settled[ConditionType.UP_TO_DATE], frozenset({Reason.PROGRESS_DEADLINE_EXCEEDED})),
        lambda: _older_serve(settled),
        lambda: _if_false(settled[ConditionType.SERVING]),
        lambda: _some_missing(observation, now),
        lambda: _unless_true(settled[ConditionType.PATCH_VERIFIED]),
        lambda: _unless_true(settled[ConditionType.UP_TO_DATE]),
    )
    for rule in rules:
        if verdict := rule():
            return verdict
    return true(Reason.AVAILABLE, settled[ConditionType.SERVING].message)


def _if_false(condition: Condition, reasons: frozenset[Reason] | None = None) -> Verdict | None:
    if condition.status != "False" or (reasons is not None and condition.reason not in reasons):
        return None
    return false(Reason(condition.reason), condition.message)


def _unless_true(condition: Condition) -> Verdict | None:
    return None if condition.status == "True" else false(Reason(condition.reason), condition.message)


def _unknown_facts(observation: Observation) -> Verdict | None:
    if observation.pods is None or observation.workload is None or observation.desired is None:
        return unknown(Reason.NOT_OBSERVED, "The pods were not looked at yet.")
    return None


def _scaled_to_zero(observation: Observation) -> Verdict | None:
    if observation.desired == 0:
        return false(Reason.SCALED_TO_ZERO, "No pod is asked for. Set spec.replicas above 0 to serve.")
    return None


def _pod(observation: Observation, now: datetime) -> Verdict | None:
    findings = [finding for pod in observation.current_pods if (finding := diagnose(pod, now)) and finding.needs_person]
    worst = most_telling(findings)
    return false(worst.reason, worst.message, worst.wording) if worst else None


def _older_serve(settled: Settled) -> Verdict | None:
    if settled[ConditionType.SERVING].status != "True":
        return None
    return _if_false(settled[ConditionType.UP_TO_DATE])


def _some_missing(observation: Observation, now: datetime) -> Verdict | None:
    answering = sum(1 for pod in observation.current_pods if pod.answers)
    desired = observation.desired or 0
    if answering >= desired:
        return None
    finding = most_telling_of(observation.current_pods, now)
    return false(
        Reason.PROGRESSING,
        paragraph(
            f"{share(answering, desired, 'answers')}.",
            finding.message if finding else "The others don't exist yet.",
        ),
        finding.wording if finding else Wording.EXACT,
    )

"""The condition `Degraded`: something won't come right without a person.

What may pass by itself (GPUs that are taken, metrics that pause) counts only after a while; the time since the
condition in question flipped is the clock. First entry that applies:

1. the spec is refused
2. objects can't be written
3. the patch is refused
4. a pod can't start, or crashes
5. a pod is refused by the cluster, or finds no node for `SCHEDULING_PATIENCE`
6. the rollout is past its deadline
7. the threshold can't be set, or is out of step for `SYNC_PATIENCE`
8. metrics are lost for `METRICS_PATIENCE`

Metrics that were never configured are an administrator's choice: `MetricsAvailable` says so, nobody is woken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition
from sglang_operator.status.diagnosis import diagnose
from sglang_operator.status.finding import most_telling
from sglang_operator.status.observation import Observation
from sglang_operator.status.text import parse_rfc3339, sentence
from sglang_operator.status.verdict import Verdict, Wording, false, true, unknown

SCHEDULING_PATIENCE = timedelta(minutes=10)
SYNC_PATIENCE = timedelta(minutes=10)
METRICS_PATIENCE = timedelta(minutes=15)

_REFUSED_AT_ONCE = frozenset({Reason.QUOTA_EXCEEDED, Reason.POD_REFUSED})
_SYNC_AT_ONCE = frozenset(
    {
        Reason.LIVE_UPDATE_UNAUTHORIZED,
        Reason.API_KEY_UNAVAILABLE,
        Reason.ENGINE_REFUSED,
        Reason.THRESHOLD_INACTIVE,
    }
)

Settled = Mapping[ConditionType, Condition]


def degraded(observation: Observation, settled: Settled, now: datetime) -> Verdict:
    """Decide `Degraded` from the facts and the other conditions of the same pass."""
    rules: tuple[Callable[[], Verdict | None], ...] = (
        lambda: _if_false(settled[ConditionType.SPEC_VALID]),
        lambda: _apply(observation),
        lambda: _if_false(settled[ConditionType.PATCH_VERIFIED]),
        lambda: _pod(observation, now),
        lambda: _after(settled[ConditionType.SCHEDULED], SCHEDULING_PATIENCE, _REFUSED_AT_ONCE, now),
        lambda: _deadline(settled[ConditionType.UP_TO_DATE]),
        lambda: _after(settled[ConditionType.THRESHOLD_SYNCED], SYNC_PATIENCE, _SYNC_AT_ONCE, now),
        lambda: _metrics(settled[ConditionType.METRICS_AVAILABLE], now),
    )
    for rule in rules:
        if verdict := rule():
            return verdict
    if observation.pods is None or observation.workload is None:
        return unknown(Reason.NOT_OBSERVED, "The pods were not looked at yet.")
    return false(Reason.AS_EXPECTED, "Nothing needs a person.")


def _if_false(condition: Condition) -> Verdict | None:
    return _copy(condition) if condition.status == "False" else None


def _copy(condition: Condition) -> Verdict:
    return true(Reason(condition.reason), condition.message)


def _apply(observation: Observation) -> Verdict | None:
    failure = observation.apply_error
    if failure is None:
        return None
    return Verdict(status="True", reason=failure.reason, message=sentence(failure.message), wording=Wording.LOG)


def _pod(observation: Observation, now: datetime) -> Verdict | None:
    findings = [finding for pod in observation.active_pods if (finding := diagnose(pod, now)) and finding.needs_person]
    worst = most_telling(findings)
    if worst is None:
        return None
    return Verdict(status="True", reason=worst.reason, message=worst.message, wording=worst.wording)


def _deadline(condition: Condition) -> Verdict | None:
    late = condition.status == "False" and condition.reason == Reason.PROGRESS_DEADLINE_EXCEEDED
    return _copy(condition) if late else None


def _after(condition: Condition, patience: timedelta, at_once: frozenset[Reason], now: datetime) -> Verdict | None:
    if condition.status != "False":
        return None
    if condition.reason in at_once or _lasts(condition, now) >= patience:
        return _copy(condition)
    return None


def _metrics(condition: Condition, now: datetime) -> Verdict | None:
    if condition.reason == Reason.NOT_CONFIGURED:
        return None
    return _after(condition, METRICS_PATIENCE, frozenset(), now)


def _lasts(condition: Condition, now: datetime) -> timedelta:
    since = parse_rfc3339(condition.last_transition_time)
    return now - since if since else timedelta()

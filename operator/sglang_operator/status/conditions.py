"""From one observation to all conditions: always the same nine, always in the same order.

Each rule lives in a module of its own; this one only puts them together and keeps the transition times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition
from sglang_operator.status.degraded import degraded
from sglang_operator.status.metrics import metrics_available
from sglang_operator.status.observation import Observation
from sglang_operator.status.patching import patch_verified
from sglang_operator.status.readiness import ready
from sglang_operator.status.rollout import serving, spec_reason, up_to_date
from sglang_operator.status.scheduling import scheduled
from sglang_operator.status.text import sentence
from sglang_operator.status.thresholds import threshold_synced
from sglang_operator.status.verdict import Verdict, false, settle, true


def conditions(
    observation: Observation, previous: Sequence[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Judge every condition once, in the order of `ConditionType`.

    `previous` are the conditions as stored: a transition time moves only when the status differs from there.
    `generation` is the resource's generation that the observation is about; `now` is in UTC, with its zone.
    """
    stored = {condition.type: condition for condition in previous}
    settled: dict[ConditionType, Condition] = {}

    def store(kind: ConditionType, verdict: Verdict) -> None:
        settled[kind] = settle(kind, verdict, stored.get(kind.value), generation=generation, now=now)

    for kind, verdict in _single(observation, stored, now).items():
        store(kind, verdict)
    store(ConditionType.DEGRADED, degraded(observation, settled, now))
    store(ConditionType.READY, ready(observation, settled, now))
    return tuple(settled[kind] for kind in ConditionType)


def _single(observation: Observation, stored: Mapping[str, Condition], now: datetime) -> dict[ConditionType, Verdict]:
    """Judge the conditions that come from facts alone; the two summaries are built on them."""
    last_up_to_date = stored.get(ConditionType.UP_TO_DATE.value)
    was_up_to_date = last_up_to_date is not None and last_up_to_date.status == "True"
    return {
        ConditionType.SPEC_VALID: _spec_valid(observation),
        ConditionType.SCHEDULED: scheduled(observation),
        ConditionType.PATCH_VERIFIED: patch_verified(observation, now),
        ConditionType.SERVING: serving(observation, now),
        ConditionType.UP_TO_DATE: up_to_date(observation, was_up_to_date=was_up_to_date, now=now),
        ConditionType.METRICS_AVAILABLE: metrics_available(observation),
        ConditionType.THRESHOLD_SYNCED: threshold_synced(observation),
    }


def _spec_valid(observation: Observation) -> Verdict:
    error = observation.spec_error
    if error is None:
        return true(Reason.ACCEPTED, "The spec can be served as it is written.")
    return false(spec_reason(error.reason), sentence(error.message))

"""Events: what changed between two statuses, told once, in the order in which a reader wants it.

An event is for what a person would want to know about. What comes and goes with every start (pods pending, patch
pending, loading) is left to the conditions.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_operator.api.reasons import ConditionType, EventReason, Reason
from sglang_operator.api.v1alpha1 import Condition, InferenceServiceStatus
from sglang_operator.status.text import MESSAGE_BYTES, cut, paragraph, sentence


@dataclass(frozen=True, kw_only=True)
class EventLine:
    """One line for `kubectl describe`. `warning`: something a person may have to act on."""

    reason: EventReason
    message: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class _Change:
    """One condition before and after; `before` is None on the first visit."""

    before: Condition | None
    after: Condition

    def became(self, status: str) -> bool:
        """The status is now this, and was not before."""
        return self.after.status == status and (self.before is None or self.before.status != status)

    def went(self, old: str, new: str) -> bool:
        """The status was one and is the other."""
        return self.before is not None and (self.before.status, self.after.status) == (old, new)

    def newly(self, status: str) -> bool:
        """The status is this for a reason that is new, or the status itself is new."""
        return self.became(status) or (
            self.after.status == status and self.before is not None and self.before.reason != self.after.reason
        )


_EXPECTED_PAUSES = frozenset(
    {
        Reason.ROLLING_OUT,
        Reason.PROGRESSING,
        Reason.SCALED_TO_ZERO,
        Reason.STARTING,
        Reason.PATCH_PENDING,
    }
)
"""Reasons of `Ready=False` that follow from what somebody asked for."""


def events(previous: InferenceServiceStatus | None, current: InferenceServiceStatus) -> tuple[EventLine, ...]:
    """Tell what changed from `previous` to `current`; equal statuses give no event."""
    before = {condition.type: condition for condition in previous.conditions} if previous else {}
    changes = {
        ConditionType(after.type): _Change(before=before.get(after.type), after=after) for after in current.conditions
    }
    lines = (
        _spec(changes[ConditionType.SPEC_VALID]),
        _rollout(previous, current),
        *_patch(changes[ConditionType.PATCH_VERIFIED]),
        _threshold_changed(previous, current),
        _threshold_synced(changes[ConditionType.THRESHOLD_SYNCED], previous, current),
        _metrics(changes[ConditionType.METRICS_AVAILABLE]),
        _degraded(changes),
        _ready(changes[ConditionType.READY]),
    )
    return tuple(line for line in lines if line is not None)


def _line(reason: EventReason, message: str, *, warning: bool = False) -> EventLine:
    return EventLine(reason=reason, message=cut(message, MESSAGE_BYTES), warning=warning)


def _spec(change: _Change) -> EventLine | None:
    if change.after.status != "False":
        return None
    known = change.before is not None and change.before.status == "False"
    if known and change.before is not None and change.before.message == change.after.message:
        return None
    return _line(EventReason.SPEC_REFUSED, change.after.message, warning=True)


def _rollout(previous: InferenceServiceStatus | None, current: InferenceServiceStatus) -> EventLine | None:
    if previous is None or previous.revision is None or previous.revision == current.revision:
        return None
    return _line(EventReason.ROLLING_OUT, f"Rolling out revision {current.revision} in place of {previous.revision}.")


def _patch(change: _Change) -> tuple[EventLine | None, ...]:
    if change.newly("False"):
        return (_line(EventReason.PATCH_REFUSED, change.after.message, warning=True),)
    if change.became("True") and change.after.reason == Reason.PATCHED:
        return (_line(EventReason.PATCH_VERIFIED, change.after.message),)
    return ()


def _threshold_changed(previous: InferenceServiceStatus | None, current: InferenceServiceStatus) -> EventLine | None:
    after = current.threshold
    before = previous.threshold if previous else None
    if after is None or (before is not None and before.batch_size == after.batch_size):
        return None
    what = (
        f"Threshold {after.batch_size} ({after.source.value})."
        if before is None
        else f"Threshold {before.batch_size} -> {after.batch_size} ({after.source.value})."
    )
    return _line(EventReason.THRESHOLD_CHANGED, paragraph(what, sentence(after.message)))


def _threshold_synced(
    change: _Change, previous: InferenceServiceStatus | None, current: InferenceServiceStatus
) -> EventLine | None:
    after = change.after
    if after.status == "True" and after.reason == Reason.SYNCED:
        known = previous.threshold.batch_size if previous and previous.threshold else None
        wanted = current.threshold.batch_size if current.threshold else None
        return _line(EventReason.THRESHOLD_SYNCED, after.message) if change.newly("True") or known != wanted else None
    if change.newly("False") and after.reason != Reason.SYNCING:
        return _line(EventReason.THRESHOLD_NOT_SYNCED, after.message, warning=True)
    return None


def _metrics(change: _Change) -> EventLine | None:
    if change.went("True", "False"):
        return _line(EventReason.METRICS_LOST, change.after.message, warning=True)
    if change.went("False", "True") and change.after.reason == Reason.FRESH:
        return _line(EventReason.METRICS_BACK, change.after.message)
    return None


def _degraded(changes: dict[ConditionType, _Change]) -> EventLine | None:
    change = changes[ConditionType.DEGRADED]
    if change.went("True", "False"):
        return _line(EventReason.RECOVERED, change.after.message)
    if not change.newly("True") or _told_already(change.after, changes):
        return None
    reason = {
        Reason.CRASH_LOOP.value: EventReason.CRASH_LOOP,
        Reason.APPLY_FAILED.value: EventReason.APPLY_FAILED,
        Reason.OPERATOR_FORBIDDEN.value: EventReason.APPLY_FAILED,
    }.get(change.after.reason, EventReason.DEGRADED)
    return _line(reason, change.after.message, warning=True)


def _told_already(degraded: Condition, changes: dict[ConditionType, _Change]) -> bool:
    """Whether the same news has an event of its own: a spec or patch that is refused, a threshold out of step."""
    own = (ConditionType.SPEC_VALID, ConditionType.PATCH_VERIFIED, ConditionType.THRESHOLD_SYNCED)
    return any(changes[kind].newly("False") and changes[kind].after.reason == degraded.reason for kind in own)


def _ready(change: _Change) -> EventLine | None:
    if change.became("True"):
        return _line(EventReason.READY, change.after.message)
    if change.before is not None and change.before.status == "True" and change.after.status != "True":
        return _line(EventReason.NOT_READY, change.after.message, warning=change.after.reason not in _EXPECTED_PAUSES)
    return None

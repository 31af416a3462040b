"""What one rule found out about one condition, before it becomes the condition that is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition
from sglang_operator.status.text import MESSAGE_BYTES, clean, cut, rfc3339

Status = Literal["True", "False", "Unknown"]

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")


class Wording(StrEnum):
    """How a message relates to the one before it, when status, reason and generation are the same."""

    EXACT = "Exact"
    """Every difference matters."""
    LOG = "Log"
    """Holds an excerpt of a log: differences in numbers only (times, process ids) are no news."""
    VAGUE = "Vague"
    """Says less than an earlier message about the same pod may have said; the earlier one stays."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Status, reason and message of one condition."""

    status: Status
    reason: Reason
    message: str
    wording: Wording = Wording.EXACT


def true(reason: Reason, message: str) -> Verdict:
    """The condition holds."""
    return Verdict(status="True", reason=reason, message=message)


def false(reason: Reason, message: str, wording: Wording = Wording.EXACT) -> Verdict:
    """The condition doesn't hold."""
    return Verdict(status="False", reason=reason, message=message, wording=wording)


def unknown(reason: Reason, message: str, wording: Wording = Wording.EXACT) -> Verdict:
    """Nobody can say yet."""
    return Verdict(status="Unknown", reason=reason, message=message, wording=wording)


def settle(
    kind: ConditionType, verdict: Verdict, previous: Condition | None, *, generation: int, now: datetime
) -> Condition:
    """Turn a verdict into the stored condition; the transition time moves only when the status flips."""
    flipped = previous is None or previous.status != verdict.status
    message = cut(clean(verdict.message) or f"{verdict.reason.value}.", MESSAGE_BYTES)
    if previous is not None and _same_news(verdict, message, previous, generation):
        message = cut(previous.message, MESSAGE_BYTES)
    return Condition(
        type=kind.value,
        status=verdict.status,
        reason=verdict.reason.value,
        message=message,
        last_transition_time=rfc3339(now) if flipped or previous is None else previous.last_transition_time,
        observed_generation=generation,
    )


def _same_news(verdict: Verdict, message: str, previous: Condition, generation: int) -> bool:
    if (previous.status, previous.reason, previous.observed_generation) != (
        verdict.status,
        verdict.reason.value,
        generation,
    ):
        return False
    if verdict.wording is Wording.VAGUE:
        return message.partition(":")[0] == previous.message.partition(":")[0]
    return verdict.wording is Wording.LOG and _NUMBERS.sub("#", message) == _NUMBERS.sub("#", previous.message)

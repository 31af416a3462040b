"""Every condition, reason and event is explained, in sentences."""

from __future__ import annotations

import pytest

from sglang_operator.api.explanations import CONDITIONS, EVENTS, REASONS, Explanation
from sglang_operator.api.reasons import ConditionType, EventReason, Reason
from sglang_operator.api.v1alpha1 import Condition


def test_nothing_is_left_out() -> None:
    assert list(CONDITIONS) == list(ConditionType)
    assert set(REASONS) == set(Reason)
    assert set(EVENTS) == set(EventReason)


def test_every_reason_belongs_to_a_condition() -> None:
    belonging = {reason for text in CONDITIONS.values() for reason in text.reasons}
    assert set(Reason) - belonging == {Reason.NOT_OBSERVED}


@pytest.mark.parametrize("text", [*REASONS.values(), *EVENTS.values()], ids=lambda text: text.meaning[:30])
def test_texts_are_sentences(text: Explanation) -> None:
    for sentence in filter(None, (text.meaning, text.next_step)):
        assert sentence[0].isupper() or sentence[0] == "`"
        assert sentence.endswith(".")
        assert "  " not in sentence


@pytest.mark.parametrize("reason", [*Reason, *EventReason])
def test_reasons_fit_into_conditions(reason: str) -> None:
    assert reason.isalnum()
    assert reason[0].isupper()
    Condition.model_validate(
        {
            "type": "Ready",
            "status": "False",
            "reason": reason,
            "message": "",
            "lastTransitionTime": "2026-11-30T12:00:00Z",
            "observedGeneration": 1,
        }
    )

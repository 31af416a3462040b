"""The page about the status says what the code does."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from sglang_operator.api.reasons import ConditionType, EventReason, Reason
from sglang_operator.status import degraded, diagnosis, text

PAGE = (Path(__file__).parents[3] / "docs" / "status.md").read_text()


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    found = re.search(rf"^### {title}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/status.md has no section {title}"
    return found.group(1)


@pytest.mark.parametrize("kind", list(ConditionType))
def test_every_condition_has_its_section(kind: ConditionType) -> None:
    assert section(kind.value).strip()


def test_every_word_that_looks_like_a_reason_is_one() -> None:
    known = {*Reason, *EventReason, *ConditionType, "True", "False", "Unknown"}
    words = set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE))
    assert words <= {str(word) for word in known}


def test_the_order_of_reasons_is_the_one_that_the_tests_of_ready_walk_through() -> None:
    told = re.findall(r"^\d+\. .*?`([A-Z]\w+)`(?:, `(NotObserved)`)?", section("Ready"), re.MULTILINE)
    order = [second or first for first, second in told]
    assert order == [
        "InvalidSpec",
        "NotObserved",
        "ScaledToZero",
        "ApplyFailed",
        "InsufficientGPUs",
        "UnsupportedSource",
        "CrashLoop",
        "ProgressDeadlineExceeded",
        "RollingOut",
        "Serving",
        "Progressing",
    ]


def test_the_times_are_the_codes() -> None:
    def minutes(rule: str) -> int:
        found = re.search(rf"{rule}[^\n]*? (\d+) minutes", PAGE)
        assert found, rule
        return int(found.group(1))

    def of(patience: timedelta) -> float:
        return patience.total_seconds() / 60

    assert minutes("no node takes it for") == of(degraded.SCHEDULING_PATIENCE)
    assert minutes("out of step for") == of(degraded.SYNC_PATIENCE)
    assert minutes("metrics are lost for") == of(degraded.METRICS_PATIENCE)
    assert minutes("has not answered for") == of(diagnosis.ANSWER_PATIENCE)
    assert minutes("containers are not made after") == of(diagnosis.CREATION_PATIENCE)
    assert f"of {text.STEP_MINUTES} minutes" in PAGE
    assert f"at most {text.MESSAGE_BYTES} bytes" in PAGE

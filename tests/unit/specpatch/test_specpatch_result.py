"""The JSON line, its limit, and the exit codes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_specpatch.result import SUCCESSES, Outcome, Reason, Refusal

EXIT_CODES = {
    Reason.PATCHED: ("Patched", 0),
    Reason.SHOWN: ("Shown", 0),
    Reason.UNDONE: ("Undone", 0),
    Reason.UNSUPPORTED_SOURCE: ("Refused", 3),
    Reason.UNSUPPORTED_WORKER: ("Refused", 3),
    Reason.SOURCE_NOT_FOUND: ("Refused", 3),
    Reason.UNKNOWN_PATCH_STATE: ("Refused", 3),
    Reason.IMPORT_CHECK_FAILED: ("CheckFailed", 4),
    Reason.TORCH_ABI_MISMATCH: ("CheckFailed", 4),
    Reason.MISSING_SYSTEM_LIBRARY: ("CheckFailed", 4),
    Reason.NO_GPU_VISIBLE: ("CheckFailed", 4),
    Reason.PACKAGE_MISMATCH: ("CheckFailed", 4),
    Reason.SOURCE_NOT_WRITABLE: ("Refused", 5),
    Reason.NO_SPACE: ("Refused", 5),
}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_result_and_exit_code(reason: Reason) -> None:
    successes = {
        Reason.PATCHED: Outcome.patched("ok", release="0.5.23", path="/p", digest="d"),
        Reason.SHOWN: Outcome.shown("ok", release="0.5.23", path="/p", digest="d"),
        Reason.UNDONE: Outcome.undone("ok", release="0.5.23", path="/p"),
    }
    assert set(successes) == SUCCESSES
    outcome = successes.get(reason) or Outcome.refused(Refusal(reason, "m", release=None, path="/p"))
    assert (outcome.result, outcome.exit_code) == EXIT_CODES[reason]


def test_the_line_has_the_agreed_fields() -> None:
    line = Outcome.patched("well", release="0.5.23", path="/sglang", digest="abc").line()
    assert json.loads(line) == {
        "result": "Patched",
        "reason": "Patched",
        "message": "well",
        "release": "0.5.23",
        "path": "/sglang",
        "generation": 2,
        "digest": "abc",
    }
    assert "\n" not in line


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=6000), st.integers(300, 5000))
def test_a_long_message_is_cut_on_a_character_and_the_json_stays_whole(message: str, limit: int) -> None:
    outcome = Outcome.refused(Refusal(Reason.UNSUPPORTED_SOURCE, message, release="0.5.23", path="/a/path"))
    line = outcome.line(limit)
    assert len(line.encode()) <= limit
    read = json.loads(line)
    assert read["reason"] == "UnsupportedSource"
    assert message.startswith(read["message"].removesuffix("…")) or read["message"] == message
    if len(outcome.line().encode()) <= limit:
        assert read["message"] == message

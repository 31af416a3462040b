from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from podbuilder import patch_json

from sglang_operator.api.reasons import Reason
from sglang_operator.status.patchresult import PatchResult, judge
from sglang_specpatch.result import SUCCESSES, Outcome, Refusal
from sglang_specpatch.result import Reason as PatchReason


def end(exit_code: int, message: str = "", reason: str = "Error", limit: str | None = "512Gi") -> PatchResult:
    return judge(exit_code=exit_code, termination_reason=reason, message=message, memory_limit=limit)


def test_a_success_tells_the_release() -> None:
    result = end(0, patch_json(), "Completed")
    assert (result.succeeded, result.reason, result.release) == (True, Reason.PATCHED, "0.5.23")


@pytest.mark.parametrize("message", ["", "no json at all", "{}", '{"result": 5}', "[1, 2]"])
def test_the_exit_code_alone_proves_a_success(message: str) -> None:
    assert end(0, message, "Completed").succeeded


def test_a_success_that_reports_a_refusal_is_not_believed() -> None:
    result = end(0, patch_json(result="Refused", reason="UnsupportedSource", message="No anchor."), "Completed")
    assert (result.succeeded, result.reason) == (False, Reason.UNKNOWN_PATCH_STATE)
    assert "No anchor." in result.message


@pytest.mark.parametrize("reason", [reason for reason in PatchReason if reason not in SUCCESSES])
def test_every_reason_of_the_engine_patch_reaches_the_condition(reason: PatchReason) -> None:
    outcome = Outcome.refused(Refusal(reason, "The cause. The next step.", release="0.5.23"))
    result = end(outcome.exit_code, outcome.line(4096))
    assert result.reason.value == reason.value
    assert result.message == "The cause. The next step."
    assert (result.succeeded, result.release) == (False, "0.5.23")


def test_a_reason_of_a_newer_patch_is_told_in_the_message() -> None:
    result = end(3, patch_json(result="Refused", reason="MoonPhase", message="Wait."))
    assert result.reason is Reason.UNSUPPORTED_SOURCE
    assert result.message == "MoonPhase: Wait."


def test_json_after_log_lines_is_found() -> None:
    log = "patching\nserver_args OK\n" + patch_json(result="CheckFailed", reason="NoGPUVisible", message="No device.")
    assert end(4, log).reason is Reason.NO_GPU_VISIBLE


@pytest.mark.parametrize("kept", range(40, 330, 7))
def test_a_cut_json_gives_what_is_left(kept: int) -> None:
    word = patch_json(result="Refused", reason="UnsupportedWorker", message='Worker "v1" — nicht gültig.' * 12)
    result = end(3, word[:kept])
    assert not result.succeeded
    assert result.reason in {Reason.UNSUPPORTED_WORKER, Reason.UNSUPPORTED_SOURCE}
    if kept > 150:
        assert result.reason is Reason.UNSUPPORTED_WORKER
        assert result.message.startswith('Worker "v1" — nicht gültig.')


def test_a_message_cut_inside_an_escape_keeps_its_start() -> None:
    word = json.dumps({"result": "Refused", "reason": "NoSpace", "message": "Größe: \u2014 zu klein"})
    cut_at = word.index("\\u2014") + 4
    result = end(5, word[:cut_at])
    assert (result.reason, result.message) == (Reason.NO_SPACE, "Größe:.")


def test_a_message_with_an_escape_that_is_none_is_shown_as_it_is() -> None:
    result = end(5, '{"result": "Refused", "reason": "NoSpace", "message": "C:\\xampp is full')
    assert (result.reason, result.message) == (Reason.NO_SPACE, "C:\\xampp is full.")


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [
        (1, Reason.UNKNOWN_PATCH_STATE),
        (2, Reason.UNKNOWN_PATCH_STATE),
        (3, Reason.UNSUPPORTED_SOURCE),
        (4, Reason.IMPORT_CHECK_FAILED),
        (5, Reason.SOURCE_NOT_WRITABLE),
        (137, Reason.UNKNOWN_PATCH_STATE),
    ],
)
def test_without_json_the_exit_code_and_the_log_tail_speak(exit_code: int, reason: Reason) -> None:
    log = "\n".join(["noise"] * 500 + ["ImportError: libnuma.so.1: cannot open shared object file"])
    result = end(exit_code, log)
    assert result.reason is reason
    assert result.message.endswith("ImportError: libnuma.so.1: cannot open shared object file")
    assert len(result.message.encode()) <= 1024


def test_a_memory_kill_names_the_limit_and_the_field() -> None:
    result = end(137, "", "OOMKilled", "256Mi")
    assert result.reason is Reason.IMPORT_CHECK_OOM_KILLED
    assert "256Mi" in result.message
    assert "engine.resources.memoryLimit" in result.message


def test_an_image_without_python_is_told_so() -> None:
    said = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        'unable to start container process: exec: "python3": executable file not found in $PATH: unknown'
    )
    result = end(128, said, "StartError")
    assert result.reason is Reason.SOURCE_NOT_FOUND
    assert "engine.image" in result.message
    assert '"python3"' in result.message


@settings(deadline=None)
@given(text=st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")), exit_code=st.integers(0, 255))
def test_no_last_words_break_the_reading(text: str, exit_code: int) -> None:
    result = end(exit_code, text)
    assert result.succeeded is (exit_code == 0)
    result.message.encode()


@settings(deadline=None)
@given(
    word=st.dictionaries(
        st.sampled_from(["result", "reason", "message", "release", "path", "generation"]),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2),
    ),
    cut=st.integers(0, 400),
)
def test_no_json_breaks_the_reading(word: dict[str, object], cut: int) -> None:
    result = end(3, json.dumps(word)[:cut])
    assert not result.succeeded
    assert result.message

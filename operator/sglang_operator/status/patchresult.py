"""What the patch container's end says about the engine patch.

The container leaves one line of JSON as its termination message. The kubelet may have cut it, may hand over the
end of the log in its place, or nothing at all; the exit code is then the only word left:

====  ==========================================================
exit  meaning
====  ==========================================================
0     patched and proven
2     the patch was called in a wrong way
3     refused: the sources can't be patched, nothing was changed
4     the import check of the patched sources failed
5     the target folder can't be written, or is full
====  ==========================================================
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sglang_operator.api.reasons import Reason
from sglang_operator.status.text import LOG_TAIL_BYTES, clean, one_line, paragraph, sentence, tail

RELEASE_LETTERS = 64

PATCH_REASONS = frozenset(
    {
        Reason.UNSUPPORTED_SOURCE,
        Reason.UNSUPPORTED_WORKER,
        Reason.SOURCE_NOT_FOUND,
        Reason.SOURCE_NOT_WRITABLE,
        Reason.UNKNOWN_PATCH_STATE,
        Reason.IMPORT_CHECK_FAILED,
        Reason.TORCH_ABI_MISMATCH,
        Reason.MISSING_SYSTEM_LIBRARY,
        Reason.NO_GPU_VISIBLE,
        Reason.PACKAGE_MISMATCH,
        Reason.NO_SPACE,
    }
)
"""Reasons that the patch itself gives for its failure."""
_BY_EXIT_CODE = {
    3: Reason.UNSUPPORTED_SOURCE,
    4: Reason.IMPORT_CHECK_FAILED,
    5: Reason.SOURCE_NOT_WRITABLE,
}
_NEXT_STEP_BY_EXIT_CODE = {
    2: "The operator and the engine patch do not fit together: report this with the log.",
    3: "Read the patch container's log, and choose an SGLang release that the patch knows.",
    4: "Read the patch container's log; the image's packages do not fit together.",
    5: "Give the pod a writable, larger volume for the patched sources.",
}
_DEFAULT_NEXT_STEP = "Read the patch container's log."
_STRING_FIELD = r'"{name}"\s*:\s*"((?:[^"\\]|\\.)*)'


@dataclass(frozen=True, kw_only=True)
class PatchResult:
    """How the patch container ended: `reason` is a condition reason, `message` the cause and the next step."""

    succeeded: bool
    reason: Reason
    message: str
    release: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Report:
    """The container's own JSON, as far as it could be read."""

    result: str
    reason: str
    message: str
    release: str | None


def judge(*, exit_code: int, termination_reason: str, message: str, memory_limit: str | None = None) -> PatchResult:
    """Judge the end of a patch container.

    `termination_reason` is the kubelet's word (`Completed`, `Error`, `OOMKilled`, `StartError`), `message` the
    termination message or a log tail, `memory_limit` the container's limit as written in the pod.
    """
    if termination_reason == "OOMKilled":
        return _out_of_memory(memory_limit)
    if termination_reason in {"StartError", "ContainerCannotRun"}:
        return _not_started(message)
    report = _read_report(message)
    if exit_code == 0:
        return _success(report)
    return _failure(exit_code, message) if report is None else _refusal(exit_code, report)


def _success(report: _Report | None) -> PatchResult:
    if report is None or report.result in {"", "Patched"}:
        release = report.release if report else None
        text = report.message if report else ""
        return PatchResult(succeeded=True, reason=Reason.PATCHED, message=sentence(text), release=release)
    contradiction = f"The patch container ended well but reports {report.result}: {report.message}"
    return PatchResult(
        succeeded=False,
        reason=Reason.UNKNOWN_PATCH_STATE,
        message=paragraph(sentence(contradiction), _DEFAULT_NEXT_STEP),
        release=report.release,
    )


def _refusal(exit_code: int, report: _Report) -> PatchResult:
    fallback = _BY_EXIT_CODE.get(exit_code, Reason.UNKNOWN_PATCH_STATE)
    known = report.reason in PATCH_REASONS
    prefix = "" if known or not report.reason else f"{report.reason}: "
    said = prefix + (report.message or "The patch container gave no cause.")
    return PatchResult(
        succeeded=False,
        reason=Reason(report.reason) if known else fallback,
        message=paragraph(sentence(said), "" if report.message else _next_step(exit_code)),
        release=report.release,
    )


def _failure(exit_code: int, log: str) -> PatchResult:
    excerpt = tail(log, LOG_TAIL_BYTES)
    return PatchResult(
        succeeded=False,
        reason=_BY_EXIT_CODE.get(exit_code, Reason.UNKNOWN_PATCH_STATE),
        message=paragraph(
            f"The patch container ended with code {exit_code} and left no readable result.",
            _next_step(exit_code),
            f"Its last words: {excerpt}" if excerpt else "",
        ),
    )


def _out_of_memory(memory_limit: str | None) -> PatchResult:
    limit = f" of {memory_limit}" if memory_limit else ""
    return PatchResult(
        succeeded=False,
        reason=Reason.IMPORT_CHECK_OOM_KILLED,
        message=f"The import check was killed for memory at the patch container's limit{limit}. Raise "
        "engine.resources.memoryLimit, or the LimitRange that sets the namespace's default.",
    )


def _not_started(message: str) -> PatchResult:
    return PatchResult(
        succeeded=False,
        reason=Reason.SOURCE_NOT_FOUND,
        message=paragraph(
            "The patch container could not be started. Check that engine.image holds python3 and SGLang.",
            sentence(message),
        ),
    )


def _next_step(exit_code: int) -> str:
    return _NEXT_STEP_BY_EXIT_CODE.get(exit_code, _DEFAULT_NEXT_STEP)


def _read_report(text: str) -> _Report | None:
    """Find the container's JSON: the last line that is one, else what can be picked from a cut one."""
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith("{"):
            fields = _load(line)
            if fields is not None:
                return _report(fields)
    return _salvage(text)


def _load(line: str) -> dict[str, object] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("result"), str) else None


def _salvage(text: str) -> _Report | None:
    start = text.rfind('{"result"')
    if start < 0:
        return None
    fields: dict[str, object] = {}
    for name in ("result", "reason", "message", "release"):
        match = re.search(_STRING_FIELD.format(name=name), text[start:], re.DOTALL)
        if match:
            fields[name] = _unescape(match.group(1))
    return _report(fields)


def _unescape(literal: str) -> str:
    """Decode the inside of a JSON string; a cut escape at its end is dropped."""
    for cut_letters in range(min(6, len(literal)) + 1):
        try:
            return str(json.loads(f'"{literal[: len(literal) - cut_letters]}"', strict=False))
        except ValueError:
            continue
    return clean(literal)


def _report(fields: dict[str, object]) -> _Report:
    def text(name: str) -> str:
        value = fields.get(name)
        return one_line(value) if isinstance(value, str) else ""

    return _Report(
        result=text("result"),
        reason=text("reason")[:RELEASE_LETTERS],
        message=text("message"),
        release=text("release")[:RELEASE_LETTERS] or None,
    )

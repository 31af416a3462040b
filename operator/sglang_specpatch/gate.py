"""Prove a patched tree in a fresh interpreter with the environment and path that the server will have."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import runtime_files
from .claims import Claims
from .classify import first_cause
from .result import Reason, Refusal

TAIL_LINES = 20
_KEPT_LINES = 4000
_MACHINERY = re.compile(r'  File "<frozen importlib|[\s^~]*$')


@dataclass(frozen=True)
class _Verdict:
    """What the probe itself says at its end; `raised` are the exceptions of a failure, the first raised first."""

    proven: bool = False
    problem: str | None = None
    raised: tuple[str, ...] = ()

    @staticmethod
    def read(text: bytes) -> _Verdict:
        if not text:
            return _Verdict()
        content = json.loads(text)
        return _Verdict(content["proven"], content["problem"], tuple(content["raised"]))


def prove(
    tree: Path,
    claims: Claims,
    environment: dict[str, str],
    *,
    say: Callable[[str], None],
    timeout_seconds: float,
) -> None:
    """Run the probe on the `sglang` in `tree`, which the environment must make the one that is loaded.

    Its output is passed on line by line. Raises Refusal with the first cause and the last lines of the log when the
    proof fails.
    """
    log: deque[str] = deque(maxlen=_KEPT_LINES)

    def keep(line: str) -> None:
        log.append(line)
        say(line)

    returncode, verdict = _run(tree, claims, environment, keep, timeout_seconds)
    if returncode == 0 and verdict.proven:
        return
    raise _refusal(tree, returncode, verdict, list(log), claims.release)


def _run(
    tree: Path, claims: Claims, environment: dict[str, str], keep: Callable[[str], None], timeout: float
) -> tuple[int | None, _Verdict]:
    read_end, write_end = os.pipe()
    command = [sys.executable, "-u", "-c", runtime_files.probe(), str(tree), str(write_end), claims.json()]
    with os.fdopen(read_end, "rb") as verdict_pipe:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        assert process.stdout is not None
        timer = threading.Timer(timeout, _end, [process])
        timer.start()
        try:
            for line in process.stdout:
                keep(line.decode(errors="replace").rstrip())
            returncode = process.wait()
        finally:
            expired = not timer.is_alive()
            timer.cancel()
            _end(process)
            process.wait()
            process.stdout.close()
        text = verdict_pipe.read()
    return (None if expired and returncode < 0 else returncode), _Verdict.read(text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the probe and whatever it started, which would hold its output open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _refusal(tree: Path, returncode: int | None, verdict: _Verdict, log: list[str], release: str | None) -> Refusal:
    reason, sentence = Reason.IMPORT_CHECK_FAILED, _sentence(returncode, log)
    if verdict.problem is not None:
        return Refusal(reason, f"Import check: {verdict.problem}", release=release, path=str(tree))
    if returncode is not None and returncode > 0:
        cause = first_cause("\n".join(verdict.raised)) or first_cause("\n".join(log))
        if cause is not None:
            reason, sentence = cause.reason, cause.sentence
    tail = "\n".join([line for line in log if not _MACHINERY.match(line)][-TAIL_LINES:])
    return Refusal(reason, f"Import check: {sentence}\n{tail}".rstrip(), release=release, path=str(tree))


def _sentence(returncode: int | None, log: list[str]) -> str:
    if returncode is None:
        return "it did not end in time and was stopped. Raise --check-timeout, or look at the last lines for what hung."
    if returncode == -9:
        return "the interpreter was killed, most likely for lack of memory. Raise the memory limit of the container."
    if returncode < 0:
        return f"the interpreter died of signal {-returncode}. Run the command in the image to see the core."
    last = next((line for line in reversed(log) if line.strip()), "no output")
    if "server_args OK" in log:
        return f"SGLang was imported, but a check after it failed: {last.strip()} Report this with the log."
    return (
        f"importing SGLang failed: {last.strip()} Fix the image, or use one in which "
        "`import sglang.srt.server_args` works."
    )

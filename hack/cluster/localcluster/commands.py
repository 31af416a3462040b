"""Running programs and waiting for things, always with a deadline, and saying how long each phase took."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from localcluster.errors import ClusterError


class CommandError(ClusterError):
    """A program failed or ran past its deadline; `output` is what it had printed."""

    def __init__(self, argv: Sequence[str], problem: str, output: str) -> None:
        super().__init__(f"{' '.join(argv[:12])}: {problem}\n{output.strip()}".strip())
        self.output = output


def run(
    argv: Sequence[str],
    *,
    deadline_seconds: float = 60,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """Standard output of a program. Raises CommandError, with both outputs, when it fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            input=stdin if stdin is not None else "",
            env=None if environment is None else {**os.environ, **environment},
            cwd=directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_seconds,
        )
    except subprocess.TimeoutExpired as expired:
        raise CommandError(argv, f"not finished after {deadline_seconds:.0f} s", _text(expired.stdout)) from expired
    except OSError as error:
        raise CommandError(argv, str(error), "") from error
    if done.returncode != 0:
        raise CommandError(argv, f"exit code {done.returncode}", done.stdout + done.stderr)
    return done.stdout


def _text(captured: bytes | str | None) -> str:
    return captured.decode(errors="replace") if isinstance(captured, bytes) else captured or ""


def succeeds(argv: Sequence[str], *, deadline_seconds: float = 10) -> bool:
    """Whether a program exits with 0 in time."""
    try:
        run(argv, deadline_seconds=deadline_seconds)
    except CommandError:
        return False
    return True


def wait_until(
    condition: Callable[[], bool], *, deadline_seconds: float, what: str, pause_seconds: float = 0.1
) -> None:
    """Returns as soon as the condition holds. Raises ClusterError naming `what` at the deadline."""
    end = time.monotonic() + deadline_seconds
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {deadline_seconds:.0f} s")
        time.sleep(pause_seconds)


def say(message: str) -> None:
    """A line for the person at the keyboard. Standard output is for results that scripts read."""
    print(message, file=sys.stderr, flush=True)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Prints the phase's name at its start and the seconds it took at its end."""
    started = time.monotonic()
    say(f"{name} ...")
    try:
        yield
    except BaseException:
        say(f"{name}: FAILED after {time.monotonic() - started:.1f} s")
        raise
    say(f"{name}: {time.monotonic() - started:.1f} s")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log with its path, for an error message."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except OSError as error:
        text = [str(error)]
    return "\n".join([f"--- {log}", *(f"    {line[:400]}" for line in text)])

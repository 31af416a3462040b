"""The first process of a namespace: starts the components, starts again what ends, reaps orphans."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TICK_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 15.0
# A component that ran this long is healthy again: its next end counts as a first one.
_HEALTHY_SECONDS = 30.0


def always() -> bool:
    """For a component that needs nothing else first."""
    return True


def _never() -> bool:
    return False


def _nothing(_: int) -> None:
    return None


@dataclass(frozen=True)
class Component:
    """A program to keep running.

    `may_start` holds it back until what it needs is there; `given_up` ends it for good; `started` is called with its
    process id after each start.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    may_start: Callable[[], bool] = field(default=always)
    given_up: Callable[[], bool] = field(default=_never)
    started: Callable[[int], None] = field(default=_nothing)


@dataclass
class _Run:
    component: Component
    process: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    ends: int = 0
    not_before: float = 0.0


def supervise(components: Sequence[Component], run_folder: Path) -> None:
    """Never returns. Writes each component's process id to `run_folder`/NAME.pid and each end to NAME.ends."""
    run_folder.mkdir(parents=True, exist_ok=True)
    runs = [_Run(component) for component in components]
    while True:
        _reap(runs, run_folder)
        for run in runs:
            _step(run, run_folder)
        time.sleep(_TICK_SECONDS)


def _step(run: _Run, run_folder: Path) -> None:
    component = run.component
    if component.given_up():
        if run.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.process.pid, signal.SIGKILL)
        return
    if run.process is None and time.monotonic() >= run.not_before and component.may_start():
        _start(run, run_folder)


def _start(run: _Run, run_folder: Path) -> None:
    component = run.component
    with component.log.open("ab") as output:
        run.process = subprocess.Popen(
            component.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
        )
    run.since = time.monotonic()
    (run_folder / f"{component.name}.pid").write_text(str(run.process.pid))
    print(f"{component.name}: started as {run.process.pid}", flush=True)
    component.started(run.process.pid)


def _reap(runs: Sequence[_Run], run_folder: Path) -> None:
    """Collects everything that ended: components, and the orphans a first process inherits."""
    by_pid = {run.process.pid: run for run in runs if run.process is not None}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        run = by_pid.get(pid)
        if run is not None:
            _note_end(run, os.waitstatus_to_exitcode(status), run_folder)


def _note_end(run: _Run, code: int, run_folder: Path) -> None:
    now = time.monotonic()
    run.ends = 1 if now - run.since > _HEALTHY_SECONDS else run.ends + 1
    pause_seconds = min(0.5 * 2 ** (run.ends - 1), _LONGEST_PAUSE_SECONDS)
    run.not_before = now + pause_seconds
    assert run.process is not None
    # Already reaped by waitpid: tell Popen, or its destructor complains and waits for a process that isn't there.
    run.process.returncode = code
    run.process = None
    name = run.component.name
    with (run_folder / f"{name}.ends").open("a") as ends:
        ends.write(f"{code}\n")
    print(f"{name}: ended with {code}, starting again in {pause_seconds:.1f} s", flush=True)


def ends_recorded(run_folder: Path, name: str) -> int:
    """How often a component has ended since the cluster's start."""
    try:
        return len((run_folder / f"{name}.ends").read_text().splitlines())
    except OSError:
        return 0

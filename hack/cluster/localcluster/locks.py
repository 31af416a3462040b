"""One user of a thing at a time, among processes that know nothing of each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from localcluster.commands import say
from localcluster.errors import ClusterError

_PAUSE_SECONDS = 0.2


@contextlib.contextmanager
def exclusive(path: Path, what: str, *, deadline_seconds: float = 3600, remove: bool = False) -> Iterator[None]:
    """Holds the lock file; with `remove`, it is gone afterwards. Raises ClusterError when it isn't free in time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + deadline_seconds
    told = False
    while (descriptor := _try(path)) is None:
        if not told:
            say(f"waiting for another process that uses {what}")
            told = True
        if time.monotonic() > end:
            raise ClusterError(f"{what}: used by another process for more than {deadline_seconds:.0f} s ({path})")
        time.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _try(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file may have been removed by its last holder between the opening and the locking.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None

"""The writes of this program, each of which happens wholly or not at all, and what a volume may say against them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .names import LOCK
from .result import Reason, Refusal

_SPARE_BYTES = 16 * 1024 * 1024

COPY_ADVICE = "Mount a writable volume there (an emptyDir) for the user the container runs as."
IN_PLACE_ADVICE = "Run this as the owner of the installation, or make a copy with `apply --to DIR`."


def replace_file(place: Path, data: bytes, *, like: os.stat_result, by_way_of: Path) -> None:
    """Put a file into place at once, with the mode and, where permitted, the owner that `like` has.

    `by_way_of` is a scratch name on the same volume; a run that dies leaves nothing but that.
    """
    with by_way_of.open("wb") as scratch:
        scratch.write(data)
        scratch.flush()
        os.fsync(scratch.fileno())
    with suppress(PermissionError):
        os.chown(by_way_of, like.st_uid, like.st_gid)
    by_way_of.chmod(like.st_mode & 0o7777)
    by_way_of.replace(place)


def keep_file(place: Path, kept: Path, *, by_way_of: Path) -> None:
    """Give a file a second name that outlives its replacement, mode, owner and times included.

    A link where the volume has links, else a copy. Whatever had that name before is dropped.
    """
    kept.unlink(missing_ok=True)
    try:
        os.link(place, kept)
    except OSError:
        shutil.copy2(place, by_way_of)
        with suppress(PermissionError):
            os.chown(by_way_of, place.stat().st_uid, place.stat().st_gid)
        by_way_of.replace(kept)


def require_space(place: Path, needed_bytes: int) -> None:
    """Refuse before the first write what can't end well."""
    free = shutil.disk_usage(place).free
    needed = needed_bytes + _SPARE_BYTES
    if free < needed:
        raise _no_space(place, f"{free >> 20} MiB free, {needed >> 20} MiB needed")


@contextmanager
def disk_errors(place: Path, advice: str) -> Iterator[None]:
    """Turn what a volume may refuse into a refusal of ours."""
    try:
        yield
    except OSError as error:
        raise volume_refusal(error, place, advice) from error


def volume_refusal(error: OSError, place: Path, advice: str) -> Refusal:
    """Name the trouble of a volume and the way out."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(place, str(error))
    return Refusal(Reason.SOURCE_NOT_WRITABLE, f"{place} can't be written: {error}. {advice}", path=str(place))


def _no_space(place: Path, detail: str) -> Refusal:
    return Refusal(
        Reason.NO_SPACE, f"No space for the patch in {place}: {detail}. Give the volume more room.", path=str(place)
    )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory for one patcher; the others wait. The holder may remove the lock's file."""
    place = directory / LOCK
    while True:
        lock = place.open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), place.stat()):
                break
        lock.close()
    with lock:
        yield

"""A complete patched copy of SGLang in a directory of its own, all or nothing.

A fresh tree is built in a staging folder of the target (one volume, so that a rename moves it), proven there by the
caller, and only then renamed into place. Whatever an interrupted run leaves is swept away by the next one, and the
end state is byte-identical to one clean run. Copies, not links: the image and the target are different volumes.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import runtime_files
from .layouts import Layout, plan
from .locate import Found
from .manifest import Manifest, differences, digest_of, digests, files_of, sha256
from .names import GENERATION, LOCK, MANIFEST, PACKAGE, RETIRED, RUNTIME_DIRECTORY, STAGING
from .result import Reason, Refusal

_SPARE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Blueprint:
    """What the patched tree must look like: the source's files, some replaced, some added."""

    source: Found
    layout: Layout
    copied: Mapping[str, Path]
    written: Mapping[str, bytes]
    manifest: Manifest

    @property
    def size_bytes(self) -> int:
        """Bytes that the copy takes."""
        return sum(place.stat().st_size for place in self.copied.values()) + sum(map(len, self.written.values()))


def draw(source: Found, *, import_check: str) -> Blueprint:
    """Compute the whole patched tree of a source without writing anything.

    Raises Refusal with UnsupportedSource, UnsupportedWorker or UnknownPatchState.
    """
    if (source.package / RUNTIME_DIRECTORY).exists():
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{source.package} already holds {RUNTIME_DIRECTORY}. Give the pristine SGLang of the image as the source: "
            "reinstall sglang there.",
            release=source.release,
            path=str(source.package),
        )
    try:
        layout = plan(lambda path: _read(source.package / path), source.release)
    except Refusal as refusal:
        refusal.release, refusal.path = source.release, str(source.package)
        raise
    written = {member.path: member.after for member in layout.members}
    written.update({f"{RUNTIME_DIRECTORY}/{name}": data for name, data in runtime_files.read().items()})
    copied = {path: place for path, place in files_of(source.package).items() if path not in written}
    members = {path: sha256(data) for path, data in written.items()}
    files = {path: sha256(place.read_bytes()) for path, place in copied.items()} | members
    manifest = Manifest(
        generation=GENERATION,
        release=source.release,
        source=str(source.package),
        import_check=import_check,
        digest=digest_of(members),
        members=tuple(sorted(members)),
        files=dict(sorted(files.items())),
    )
    return Blueprint(source, layout, copied, written, manifest)


def is_in_place(blueprint: Blueprint, target: Path) -> bool:
    """Tell whether the target already holds exactly the drawn tree."""
    return Manifest.read(target) == blueprint.manifest and not differences(target, blueprint.manifest)


def states(blueprint: Blueprint, target: Path) -> dict[str, str]:
    """Say of each patched member: applied (new here), already there, or healed (it was there, but different)."""
    present = digests(target / PACKAGE) if (target / PACKAGE).is_dir() else {}
    known = Manifest.read(target) is not None
    return {
        path: "already there"
        if present.get(path) == blueprint.manifest.files[path]
        else ("healed" if known else "applied")
        for path in blueprint.manifest.members
    }


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the target for one patcher and clean up after a dead one."""
    with _disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        lock = (target / LOCK).open("wb")
    with lock:
        with _disk_errors(target):
            fcntl.flock(lock, fcntl.LOCK_EX)
            _sweep(target)
        yield


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Turn what a volume may refuse into a refusal of ours."""
    try:
        yield
    except OSError as error:
        raise _volume_refusal(error, target) from error


def build(blueprint: Blueprint, target: Path) -> Path:
    """Write the whole tree into the staging folder and return that folder; `commit` puts it in place.

    Raises Refusal(UnknownPatchState) when the target holds an `sglang` of someone else, and NoSpace.
    """
    if (target / PACKAGE).exists() and not (target / MANIFEST).exists():
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{target / PACKAGE} exists and was not written by this program. Give an empty directory.",
            release=blueprint.source.release,
            path=str(target),
        )
    with _disk_errors(target):
        return _write_staging(blueprint, target)


def _write_staging(blueprint: Blueprint, target: Path) -> Path:
    free, needed = shutil.disk_usage(target).free, blueprint.size_bytes + _SPARE_BYTES
    if free < needed:
        raise _no_space(target, f"{free >> 20} MiB free, {needed >> 20} MiB needed")
    staging = target / STAGING
    package = staging / PACKAGE
    made: set[Path] = set()
    for path, place in blueprint.copied.items():
        _ensure_parent(package / path, made)
        copy_file(place, package / path)
    for path, data in blueprint.written.items():
        _ensure_parent(package / path, made)
        write_file(package / path, data)
    blueprint.manifest.write(staging)
    return staging


def commit(blueprint: Blueprint, target: Path) -> None:
    """Move the staged tree into place. The manifest goes first: it says that what lies here is ours to replace."""
    with _disk_errors(target):
        blueprint.manifest.write(target)
        if (target / PACKAGE).exists():
            (target / PACKAGE).rename(target / RETIRED)
        (target / STAGING / PACKAGE).rename(target / PACKAGE)
        drop_bytecode(blueprint.manifest, target)
        _sweep(target)


def discard(target: Path) -> None:
    """Remove the staged tree; what was in place before stays."""
    _sweep(target)


def copy_file(source: Path, destination: Path) -> None:
    """Copy one file with its permissions and time."""
    shutil.copyfile(source, destination)
    shutil.copystat(source, destination)


def write_file(destination: Path, data: bytes) -> None:
    """Write one patched or added file, readable by every user."""
    destination.write_bytes(data)
    destination.chmod(0o644)


def _ensure_parent(place: Path, made: set[Path]) -> None:
    if place.parent not in made:
        place.parent.mkdir(parents=True, exist_ok=True)
        made.add(place.parent)


def drop_bytecode(manifest: Manifest, target: Path) -> None:
    """Remove cached bytecode of patched files, wherever this interpreter keeps it: it can outlive its source."""
    for path in manifest.members:
        for optimization in ("", "1", "2"):
            cached = importlib.util.cache_from_source(str(target / PACKAGE / path), optimization=optimization)
            Path(cached).unlink(missing_ok=True)


def _sweep(target: Path) -> None:
    for leftover in (target / STAGING, target / RETIRED):
        if leftover.exists():
            shutil.rmtree(leftover)
    (target / f"{MANIFEST}.tmp").unlink(missing_ok=True)


def _read(place: Path) -> bytes | None:
    try:
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _volume_refusal(error: OSError, target: Path) -> Refusal:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(target, str(error))
    return Refusal(
        Reason.SOURCE_NOT_WRITABLE,
        f"{target} can't be written: {error}. Mount a writable volume there (an emptyDir) for the user the container "
        "runs as.",
        path=str(target),
    )


def _no_space(target: Path, detail: str) -> Refusal:
    return Refusal(
        Reason.NO_SPACE,
        f"No space for the patched copy in {target}: {detail}. Give the volume more room.",
        path=str(target),
    )

"""A complete patched copy of SGLang in a directory of its own, all or nothing.

A fresh tree is built in a staging folder of the target (one volume, so that a rename moves it), proven there by the
caller, and only then renamed into place. Whatever an interrupted run leaves is swept away by the next one, and the
end state is byte-identical to one clean run. Copies, not links: the image and the target are different volumes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import bytecode, disk, runtime_files
from .disk import COPY_ADVICE, disk_errors
from .layouts import Layout, plan
from .locate import Found
from .manifest import Manifest, differences, digest_of, digests, sha256
from .names import GENERATION, LOCK, MANIFEST, PACKAGE, RETIRED, RUNTIME_DIRECTORY, STAGING
from .pristine import Pristine, pristine
from .result import Reason, Refusal


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

    def members_in(self, directory: Path) -> list[Path]:
        """Return the places of the patched and added files of a tree in some directory."""
        return [directory / PACKAGE / path for path in self.manifest.members]


def draw(source: Found, *, import_check: str) -> Blueprint:
    """Compute the whole patched tree of a source, patched already or not, without writing anything.

    Raises Refusal with UnsupportedSource, UnsupportedWorker or UnknownPatchState, and SourceNotFound for files that
    this user can't read.
    """
    try:
        return _draw(pristine(source), import_check)
    except OSError as error:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{source.package} can't be read by user {os.geteuid()}: {error}. Run as a user who can, or make the files "
            "of the image readable for all.",
            release=source.release,
            path=str(source.package),
        ) from error


def _draw(origin: Pristine, import_check: str) -> Blueprint:
    found = origin.found
    try:
        layout = plan(origin.read, found.release)
    except Refusal as refusal:
        refusal.release, refusal.path = found.release, str(found.package)
        raise
    written = {member.path: member.after for member in layout.members}
    written.update({f"{RUNTIME_DIRECTORY}/{name}": data for name, data in runtime_files.read().items()})
    copied = {path: place for path, place in origin.files.items() if path not in written}
    members = {path: sha256(data) for path, data in written.items()}
    files = {path: sha256(place.read_bytes()) for path, place in copied.items()} | members
    manifest = Manifest(
        generation=GENERATION,
        release=found.release,
        source=str(found.package),
        import_check=import_check,
        digest=digest_of(members),
        members=tuple(sorted(members)),
        files=dict(sorted(files.items())),
    )
    return Blueprint(found, layout, copied, written, manifest)


def is_in_place(blueprint: Blueprint, target: Path) -> bool:
    """Tell whether the target already holds exactly the drawn tree."""
    return blueprint.manifest.same_tree(Manifest.read(target)) and not differences(target, blueprint.manifest)


def states(blueprint: Blueprint, target: Path) -> dict[str, str]:
    """Say of each patched member: applied (new here), already there, or healed (it was there, but different)."""
    present = digests(target / PACKAGE)
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
    with ExitStack() as held:
        with disk_errors(target, COPY_ADVICE):
            target.mkdir(parents=True, exist_ok=True)
            held.enter_context(disk.locked(target))
            _sweep(target)
        yield


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
    with disk_errors(target, COPY_ADVICE):
        return _write_staging(blueprint, target)


def _write_staging(blueprint: Blueprint, target: Path) -> Path:
    disk.require_space(target, blueprint.size_bytes)
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
    with disk_errors(target, COPY_ADVICE):
        blueprint.manifest.write(target)
        _retire(target)
        (target / STAGING / PACKAGE).rename(target / PACKAGE)
        bytecode.drop(blueprint.members_in(target))
        _sweep(target)


def seal(blueprint: Blueprint, target: Path) -> None:
    """Note that a tree which lay there unproven has been proven."""
    known = Manifest.read(target)
    if known is not None and known.import_check != "passed":
        with disk_errors(target, COPY_ADVICE):
            replace(known, import_check=blueprint.manifest.import_check).write(target)


def discard(target: Path) -> None:
    """Remove the staged tree; what was in place before stays."""
    _sweep(target)


def remove(target: Path) -> Manifest | None:
    """Take a patched copy away, of whatever generation, and return its manifest; the directory stays.

    None if there is none. Raises Refusal(UnknownPatchState), naming the files, when somebody edited or added some.
    """
    manifest = Manifest.read(target)
    if manifest is None and (target / PACKAGE).exists():
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{target / PACKAGE} has no readable {MANIFEST} beside it, so it was not written by this program.",
            path=str(target),
        )
    found = differences(target, manifest) if manifest is not None else None
    if found is not None and (found.changed or found.foreign):
        edited = replace(found, missing=()).sentence()
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{target / PACKAGE} holds changes of somebody: {edited}. Save them, remove the folder by hand, and run "
            "this again. Nothing was changed.",
            release=manifest.release if manifest else None,
            path=str(target),
        )
    with disk_errors(target, COPY_ADVICE):
        _retire(target)
        (target / MANIFEST).unlink(missing_ok=True)
        _sweep(target)
        (target / LOCK).unlink(missing_ok=True)
    return manifest


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


def _retire(target: Path) -> None:
    """Take the tree in place out of the way; an overlay can't rename a folder that comes from a lower layer."""
    if not (target / PACKAGE).exists():
        return
    try:
        (target / PACKAGE).rename(target / RETIRED)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.rmtree(target / PACKAGE)


def _sweep(target: Path) -> None:
    for leftover in (target / STAGING, target / RETIRED):
        if leftover.exists():
            shutil.rmtree(leftover)
    (target / f"{MANIFEST}.tmp").unlink(missing_ok=True)

"""Patch the installed package itself, so that it can be taken back byte for byte.

The journal goes first, then file by file: the original gets its second name, then one rename puts the patched file in
its place. A patcher that dies at any point leaves each file whole, original or patched, and the journal to tell them
apart; the next run goes on from there, or takes everything back. The manifest says `pending` until the proof is done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from . import bytecode, disk, record
from .disk import IN_PLACE_ADVICE, disk_errors
from .manifest import Manifest, differences, sha256
from .names import GENERATION, LOCK, MANIFEST, ORIGINALS, PACKAGE, RUNTIME_DIRECTORY
from .originals import Change, Journal, State, digest_at, kept_bytecode
from .result import Reason, Refusal
from .tree import Blueprint


@dataclass(frozen=True)
class Plan:
    """What is to lie where below `root`, the folder that holds the package, and what was there before."""

    root: Path
    manifest: Manifest
    written: Mapping[str, bytes]
    journal: Journal

    def is_done(self) -> bool:
        """Tell whether a run before this one did it all, its proof included unless that was skipped."""
        known = Manifest.read(self.root)
        return (
            known is not None
            and known.import_check != "pending"
            and self.manifest.same_tree(known)
            and Journal.read(self.root) == self.journal
            and all(self.journal.state(path) is State.PATCHED for path in self.written)
            and not differences(self.root, self.manifest)
        )

    def states(self) -> dict[str, str]:
        """Say of each file: applied (new here), already there, or healed (patched once, but original or gone now)."""
        known = Journal.read(self.root)
        seen = {} if known is None else known.changes
        return {
            path: "already there"
            if self.journal.state(path) is State.PATCHED
            else ("healed" if seen.get(path) == change else "applied")
            for path, change in self.journal.changes.items()
        }


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold an installation for one patcher; nothing of it is left where nothing is patched at the end."""
    with ExitStack() as held:
        with disk_errors(root, IN_PLACE_ADVICE):
            held.enter_context(disk.locked(root))
        try:
            yield
        finally:
            if not (root / ORIGINALS).exists():
                (root / LOCK).unlink(missing_ok=True)


def plan(blueprint: Blueprint, root: Path) -> Plan:
    """Work out every file to change. Nothing is written.

    Raises Refusal: UnsupportedSource for files that are links, SourceNotWritable, NoSpace.
    """
    package, source = root / PACKAGE, Path(blueprint.manifest.source)
    if source.resolve().name != PACKAGE:
        raise _shared(source, blueprint.source.release)
    if package.resolve() != source.resolve():
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{package} is a copy that `apply --to {root}` made of {source}. Heal it with that command, "
            "or take it off PYTHONPATH to patch what it was made from.",
            release=blueprint.source.release,
            path=str(package),
        )
    written = {f"{PACKAGE}/{path}": data for path, data in blueprint.written.items()}
    before = Journal.read(root)
    listing = _listing(before, root)
    if listing is not None:
        original = before.original(listing) if before is not None and listing in before.changes else root / listing
        assert original is not None
        ours = [*_beside_the_package(written, listing), *_kept_bytecode(before, root, written)]
        written[listing] = record.rewrite(original.read_bytes(), written, unhashed=sorted(ours))
    changes = {path: Change(_original_digest(before, root, path), sha256(data)) for path, data in written.items()}
    journal = Journal(root, GENERATION, blueprint.source.release, dict(sorted(changes.items())))
    made = Plan(root, blueprint.manifest, written, journal)
    if not made.is_done():
        _require_plain_files(made)
        _require_writable(made)
    return made


def _listing(before: Journal | None, root: Path) -> str | None:
    """Return pip's list of files, be it deleted by now."""
    known = [path for path in before.changes if path.endswith("/RECORD")] if before is not None else []
    return known[0] if known else record.find(root)


def _beside_the_package(written: Mapping[str, bytes], listing: str) -> list[str]:
    """The files of our own that change after the list is written, or hold it."""
    kept = [f"{ORIGINALS}/files/{path}" for path in [*written, listing] if not _is_runtime(path)]
    return [LOCK, MANIFEST, f"{ORIGINALS}/journal.json", *kept]


def _kept_bytecode(before: Journal | None, root: Path, written: Mapping[str, bytes]) -> list[str]:
    """Where bytecode is kept, or will be when its source is replaced."""
    places = {place for _, place in before.all_kept_bytecode()} if before is not None else set()
    for path in written:
        replaced = before is not None and path in before.changes and before.state(path) is not State.ORIGINAL
        if not (replaced or _is_runtime(path)):
            places.update(bytecode.beside(root / path))
    return [kept_bytecode(root, place).relative_to(root).as_posix() for place in places]


def _is_runtime(path: str) -> bool:
    return path.startswith(f"{PACKAGE}/{RUNTIME_DIRECTORY}/")


def _original_digest(before: Journal | None, root: Path, path: str) -> str | None:
    if before is not None and path in before.changes:
        return before.changes[path].original
    return None if _is_runtime(path) else digest_at(root / path)


def _require_plain_files(made: Plan) -> None:
    for path in made.written:
        if (made.root / path).exists() and (made.root / path).resolve() != made.root.resolve() / path:
            raise _shared(made.root / path, made.manifest.release)


def _shared(place: Path, release: str | None) -> Refusal:
    return Refusal(
        Reason.UNSUPPORTED_SOURCE,
        f"{place} is a link to {place.resolve()}, which others may share. Make a copy with `apply --to DIR`.",
        release=release,
        path=str(place),
    )


def _require_writable(made: Plan) -> None:
    folders = {made.root, *((made.root / path).parent for path in made.written if not _is_runtime(path))}
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Refusal(
                Reason.SOURCE_NOT_WRITABLE,
                f"{folder} can't be written by user {os.geteuid()}. {IN_PLACE_ADVICE}",
                release=made.manifest.release,
                path=str(made.root / PACKAGE),
            )
    disk.require_space(made.root, 2 * sum(map(len, made.written.values())))


def write(made: Plan) -> None:
    """Put everything in place, unproven. A patch of another program that lies there is taken back first.

    When the volume refuses in the middle, `undo` takes back what was written.
    """
    before = Journal.read(made.root)
    if before is not None and before != made.journal:
        undo(made.root)
    with disk_errors(made.root, IN_PLACE_ADVICE):
        made.journal.write()
        for path, data in made.written.items():
            if made.journal.state(path) is not State.PATCHED:
                _replace(made, path, data)
        bytecode.drop(made.root / path for path in made.written if path.endswith(".py"))
        replace(made.manifest, import_check="pending").write(made.root)


def _replace(made: Plan, path: str, data: bytes) -> None:
    place, journal = made.root / path, made.journal
    if _is_runtime(path):
        _ensure_runtime_directory(place.parent)
    elif journal.state(path) is State.ORIGINAL:
        kept = journal.kept(path)
        kept.parent.mkdir(parents=True, exist_ok=True)
        disk.keep_file(place, kept, by_way_of=journal.scratch)
        _keep_bytecode(journal, place)
    like = place if place.exists() else (journal.original(path) or made.root / PACKAGE / "__init__.py")
    disk.replace_file(place, data, like=like.stat(), by_way_of=journal.scratch)


def _ensure_runtime_directory(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir()
        above = folder.parent.stat()
        with suppress(PermissionError):
            os.chown(folder, above.st_uid, above.st_gid)
        folder.chmod(above.st_mode & 0o7777)


def _keep_bytecode(journal: Journal, source: Path) -> None:
    """Keep what an installer compiled, so that `undo` brings a read-only image back to its start time."""
    for cached in bytecode.beside(source):
        kept = kept_bytecode(journal.root, cached)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            cached.rename(kept)


def seal(made: Plan) -> None:
    """Write the manifest that says how the tree was proven; one that says `passed` already stays."""
    known = Manifest.read(made.root)
    if not (known is not None and known.import_check == "passed" and made.manifest.same_tree(known)):
        with disk_errors(made.root, IN_PLACE_ADVICE):
            made.manifest.write(made.root)


def undo(root: Path) -> Journal | None:
    """Restore every original and remove what was added; None where nothing is patched in place.

    Raises Refusal(UnknownPatchState), before anything is changed, when a file was edited by somebody or an original is
    gone.
    """
    journal = Journal.read(root)
    with disk_errors(root, IN_PLACE_ADVICE):
        if journal is None:
            _remove_store(root)
            return None
        journal.require_ours()
        _require_no_foreign_files(journal)
        (root / MANIFEST).unlink(missing_ok=True)
        (root / f"{MANIFEST}.tmp").unlink(missing_ok=True)
        for path in journal.changes:
            _restore(journal, path)
        for kept, place in journal.all_kept_bytecode():
            with suppress(OSError):
                kept.rename(place)
        if (root / PACKAGE / RUNTIME_DIRECTORY).exists():
            shutil.rmtree(root / PACKAGE / RUNTIME_DIRECTORY)
        _remove_store(root)
    return journal


def _require_no_foreign_files(journal: Journal) -> None:
    folder = journal.root / PACKAGE / RUNTIME_DIRECTORY
    for place in sorted(folder.rglob("*")):
        path = place.relative_to(journal.root).as_posix()
        if place.is_file() and place.suffix != ".pyc" and path not in journal.changes:
            raise Refusal(
                Reason.UNKNOWN_PATCH_STATE,
                f"{path} in {journal.root} was added by somebody after patching. Move it away. Nothing was changed.",
                release=journal.release,
                path=str(journal.root),
            )


def _restore(journal: Journal, path: str) -> None:
    place, original = journal.root / path, journal.original(path)
    if path.endswith(".py") and journal.state(path) is not State.ORIGINAL:
        bytecode.drop([place])
    if original is None:
        place.unlink(missing_ok=True)
    elif journal.state(path) is not State.ORIGINAL:
        original.replace(place)


def _remove_store(root: Path) -> None:
    """Remove the journal last: while it is there, a dead run can be told from a lost journal."""
    folder = root / ORIGINALS
    if folder.exists():
        for part in sorted(part for part in folder.iterdir() if part.is_dir()):
            shutil.rmtree(part)
        for part in sorted(folder.iterdir(), reverse=True):
            part.unlink()
        folder.rmdir()

"""The originals of files that were patched in place, and the journal that says which bytes belong where.

Both lie in one hidden folder beside the package. The journal is written before the first change and removed after
the last one of `undo`, so whatever a dead patcher left can be told file by file: original, patched, missing, or
edited by somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from .manifest import sha256
from .names import GENERATION, ORIGINALS, PACKAGE, RUNTIME_DIRECTORY
from .result import Reason, Refusal

_JOURNAL = "journal.json"
_FILES = "files"
_BYTECODE = "bytecode"
_SCRATCH = "scratch"


class State(Enum):
    """What lies at the place of a patched file."""

    ORIGINAL = "original"
    PATCHED = "patched"
    MISSING = "missing"
    EDITED = "edited"


@dataclass(frozen=True)
class Change:
    """One file patched in place: the SHA-256 of its original (None for an added file) and of what replaced it."""

    original: str | None
    patched: str


@dataclass(frozen=True)
class Journal:
    """What was or is being changed below `root`, the folder that holds the package; paths are relative to it."""

    root: Path
    generation: int
    release: str | None
    changes: Mapping[str, Change]

    @staticmethod
    def read(root: Path) -> Journal | None:
        """Return the journal beside a package, or None where nothing was patched in place.

        Raises Refusal(UnknownPatchState) when originals lie there without a journal that can be read.
        """
        folder = root / ORIGINALS
        try:
            content = json.loads((folder / _JOURNAL).read_bytes())
            changes = {path: Change(**change) for path, change in content["changes"].items()}
            return Journal(root, int(content["generation"]), content["release"], changes)
        except FileNotFoundError as error:
            if not any(place.is_file() for place in (folder / _FILES).rglob("*")):
                return None
            problem: Exception = error
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            problem = error
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{folder} holds originals, but its {_JOURNAL} can't be read ({problem}). Reinstall sglang, then remove "
            f"{folder}.",
            path=str(root),
        )

    def write(self) -> None:
        """Replace the journal at once."""
        self.scratch.parent.mkdir(exist_ok=True)
        changes = {path: asdict(change) for path, change in sorted(self.changes.items())}
        content = {"generation": self.generation, "release": self.release, "changes": changes}
        self.scratch.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        self.scratch.replace(self.root / ORIGINALS / _JOURNAL)

    @property
    def scratch(self) -> Path:
        """A name for half-written files, on the volume of the package."""
        return self.root / ORIGINALS / _SCRATCH

    def kept(self, path: str) -> Path:
        """Return where the original of a changed file is kept."""
        return self.root / ORIGINALS / _FILES / path

    def all_kept_bytecode(self) -> Iterator[tuple[Path, Path]]:
        """Yield kept bytecode and the place it came from."""
        folder = self.root / ORIGINALS / _BYTECODE
        for kept in sorted(folder.rglob("*.pyc")):
            yield kept, self.root / kept.relative_to(folder)

    def state(self, path: str) -> State:
        """Say what lies at the place of a changed file."""
        change, now = self.changes[path], digest_at(self.root / path)
        if now == change.patched:
            return State.PATCHED
        if now == change.original:
            return State.ORIGINAL
        return State.MISSING if now is None else State.EDITED

    def original(self, path: str) -> Path | None:
        """Return where the original bytes of a changed file lie now; None for a file that the patch added.

        Raises Refusal(UnknownPatchState) when they lie nowhere.
        """
        change = self.changes[path]
        if change.original is None:
            return None
        for place in (self.kept(path), self.root / path):
            if digest_at(place) == change.original:
                return place
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{self.kept(path)}, the original of {path}, is gone or was changed, so the patch can't be taken back. "
            "Reinstall sglang, or restore that file. Nothing was changed.",
            release=self.release,
            path=str(self.root),
        )

    def require_ours(self) -> None:
        """Refuse a patch of a newer program, edited files, and originals that are gone; name them."""
        if self.generation > GENERATION:
            raise Refusal(
                Reason.UNKNOWN_PATCH_STATE,
                f"{self.root} was patched by generation {self.generation}, which is newer than this program's "
                f"{GENERATION}. Use the newer program.",
                release=self.release,
                path=str(self.root),
            )
        edited = [path for path in self.changes if self.state(path) is State.EDITED]
        if edited:
            raise Refusal(
                Reason.UNKNOWN_PATCH_STATE,
                f"Changed by somebody after patching: {', '.join(edited)} in {self.root}. Take the change out (the "
                f"originals are in {self.kept('')}). If sglang was installed anew over the patch, remove "
                f"{self.root / ORIGINALS} and {self.root / PACKAGE / RUNTIME_DIRECTORY}. Nothing was changed.",
                release=self.release,
                path=str(self.root),
            )
        for path in self.changes:
            self.original(path)


def kept_bytecode(root: Path, cached: Path) -> Path:
    """Return where the bytecode that a file had before the patch is kept."""
    return root / ORIGINALS / _BYTECODE / cached.relative_to(root)


def digest_at(place: Path) -> str | None:
    """Return the SHA-256 of a file, or None where there is none."""
    try:
        return sha256(place.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None

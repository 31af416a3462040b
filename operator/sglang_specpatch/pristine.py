"""The source as it was before any patch: the image's own files, or the originals of one that was patched already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .locate import Found, release_of
from .manifest import Manifest, files_of
from .names import MANIFEST, PACKAGE, RUNTIME_DIRECTORY
from .originals import Journal
from .result import Reason, Refusal


@dataclass(frozen=True)
class Pristine:
    """An unpatched package: every file's path inside `sglang/`, and where its bytes lie."""

    found: Found
    files: Mapping[str, Path]

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file by its path inside the package, or None."""
        place = self.files.get(path)
        return None if place is None else place.read_bytes()


def root_of(found: Found) -> Path:
    """Return the folder that holds the package, where the serving process looks for the manifest."""
    return found.package.resolve().parent


def pristine(found: Found) -> Pristine:
    """Look behind a patch: in place, at the originals kept beside it; in a copy, at the tree that it was made from.

    Raises Refusal(UnknownPatchState) when the originals are edited, incomplete or nowhere.
    """
    root = root_of(found)
    journal = Journal.read(root)
    if journal is not None:
        journal.require_ours()
        return Pristine(found, _behind(found.package, journal))
    manifest = Manifest.read(root)
    if manifest is None and not (found.package / RUNTIME_DIRECTORY).exists():
        return Pristine(found, files_of(found.package))
    source = Path(manifest.source) if manifest is not None else found.package
    if source.is_dir() and not source.samefile(found.package):
        return pristine(Found(source, release_of(source) or found.release))
    raise Refusal(
        Reason.UNKNOWN_PATCH_STATE,
        f"{found.package} is patched already ({_by_whom(manifest)}), and its originals are not at hand. Give an "
        "unpatched SGLang: reinstall sglang there, or take the patched folder off PYTHONPATH.",
        release=found.release,
        path=str(found.package),
    )


def _behind(package: Path, journal: Journal) -> dict[str, Path]:
    files = files_of(package)
    for path in journal.changes:
        prefix, _, inside = path.partition("/")
        if prefix == PACKAGE:
            original = journal.original(path)
            files.pop(inside, None)
            if original is not None:
                files[inside] = original
    return files


def _by_whom(manifest: Manifest | None) -> str:
    return f"no {MANIFEST} beside it" if manifest is None else f"generation {manifest.generation}"

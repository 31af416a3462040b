"""The manifest beside a patched tree: what was made from what, with a digest for every file.

It is what `run` trusts, what a second `apply` compares with, and what the serving process reports.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .names import MANIFEST, PACKAGE

_NAMED = 5


@dataclass(frozen=True)
class Manifest:
    """One patched tree. `files` maps every path inside `sglang/` to its SHA-256; `members` are the patched ones.

    `import_check` is passed, skipped, or (in place, until the proof ends) pending.
    """

    generation: int
    release: str | None
    source: str
    import_check: str
    digest: str
    members: tuple[str, ...]
    files: Mapping[str, str]

    def write(self, directory: Path) -> None:
        """Replace the manifest of `directory` at once."""
        text = json.dumps({**asdict(self), "files": dict(self.files)}, indent=1, sort_keys=True) + "\n"
        temporary = directory / f"{MANIFEST}.tmp"
        temporary.write_bytes(text.encode())
        temporary.replace(directory / MANIFEST)

    @staticmethod
    def read(directory: Path) -> Manifest | None:
        """Return the manifest of a directory patched by any generation, or None when none can be read."""
        try:
            content: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
            known = {field.name: content[field.name] for field in fields(Manifest)}
            return Manifest(**{**known, "members": tuple(known["members"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def same_tree(self, other: Manifest | None) -> bool:
        """Tell whether both describe the same files, proven or not."""
        return other is not None and replace(self, import_check="") == replace(other, import_check="")


def sha256(data: bytes) -> str:
    """Return the hexadecimal digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of(members: Mapping[str, str]) -> str:
    """Return one digest for patched members given by path and digest."""
    return sha256("".join(f"{path}\0{digest}\n" for path, digest in sorted(members.items())).encode())


def files_of(package: Path) -> dict[str, Path]:
    """Return every file below a package by its path inside it; bytecode is no part of a tree.

    Links are followed, so that a copy needs nothing outside itself; a directory reached twice is taken once. Raises
    OSError for a directory that can't be read.
    """

    def fail(error: OSError) -> None:
        raise error

    found: dict[str, Path] = {}
    seen: set[str] = set()
    for directory, names, files in os.walk(package, followlinks=True, onerror=fail):
        real = os.path.realpath(directory)
        names[:] = [] if real in seen else sorted(name for name in names if name != "__pycache__")
        if real in seen:
            continue
        seen.add(real)
        for name in files:
            place = Path(directory, name)
            if not name.endswith((".pyc", ".pyo")) and place.is_file():
                found[place.relative_to(package).as_posix()] = place
    return found


def digests(package: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a package, none where there is no package."""
    if not package.is_dir():
        return {}
    return {path: sha256(place.read_bytes()) for path, place in files_of(package).items()}


@dataclass(frozen=True)
class Differences:
    """Files of a tree that are not as its manifest has them."""

    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self.missing or self.foreign or self.changed)

    def sentence(self) -> str:
        """Name the first few."""
        named = sorted(
            [
                *(f"{path} is missing" for path in self.missing),
                *(f"{path} is not part of the patch" for path in self.foreign),
                *(f"{path} was changed" for path in self.changed),
            ]
        )
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return ", ".join(named[:_NAMED]) + more


def differences(directory: Path, manifest: Manifest) -> Differences:
    """Compare a patched directory with its manifest."""
    actual, expected = digests(directory / PACKAGE), manifest.files
    return Differences(
        missing=tuple(path for path in expected if path not in actual),
        foreign=tuple(path for path in actual if path not in expected),
        changed=tuple(path for path, digest in expected.items() if actual.get(path, digest) != digest),
    )

"""The manifest beside a patched tree: what was made from what, with a digest for every file.

It is what `run` trusts, what a second `apply` compares with, and what the serving process reports.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .names import MANIFEST, PACKAGE


@dataclass(frozen=True)
class Manifest:
    """One patched tree. `files` maps every path inside `sglang/` to its SHA-256; `members` are the patched ones."""

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
        """Return the manifest of a patched directory, or None when there is none that can be read."""
        try:
            content: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
            return Manifest(**{**content, "members": tuple(content["members"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def sha256(data: bytes) -> str:
    """Return the hexadecimal digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of(members: Mapping[str, str]) -> str:
    """Return one digest for patched members given by path and digest."""
    return sha256("".join(f"{path}\0{digest}\n" for path, digest in sorted(members.items())).encode())


def files_of(package: Path) -> dict[str, Path]:
    """Return every file below a package by its path inside it; bytecode is no part of a tree.

    Links are followed, so that a copy needs nothing outside itself; a directory reached twice is taken once.
    """
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for directory, names, files in os.walk(package, followlinks=True):
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
    """Return the SHA-256 of every file below a package."""
    return {path: sha256(place.read_bytes()) for path, place in files_of(package).items()}


def differences(directory: Path, manifest: Manifest) -> list[str]:
    """Say which files of a patched directory are not as its manifest has them."""
    actual = digests(directory / PACKAGE)
    missing = [f"{path} is missing" for path in manifest.files if path not in actual]
    foreign = [f"{path} is not part of the patch" for path in actual if path not in manifest.files]
    changed = [f"{path} was changed" for path, digest in manifest.files.items() if actual.get(path, digest) != digest]
    return sorted([*missing, *foreign, *changed])

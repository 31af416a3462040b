"""What the commands have in common: finding the source, trusting a patched tree, proving it, saying so."""

from __future__ import annotations

import os
from pathlib import Path

from .. import gate
from ..claims import claims_of
from ..locate import Found, locate, search_path
from ..manifest import Manifest, differences
from ..names import GENERATION, PACKAGE
from ..originals import Journal
from ..pristine import root_of
from ..result import Outcome, Reason, Refusal


def say(line: str) -> None:
    """Print one line of the log for people."""
    print(line, flush=True)


def find_source(*, without: Path | None = None) -> Found:
    """Locate the package that a server started here would load, and say where it is and what was passed over."""
    source = locate(dict(os.environ), without=without)
    say(f"SGLang {source.release or 'of unknown release'} in {source.package}")
    for folder in source.passed_over:
        say(f"note: {folder} is a bare folder without __init__.py, which Python passes over for the package above")
    return source


def located_root() -> Path:
    """Return the folder of the package that a server started here would load."""
    return root_of(locate(dict(os.environ)))


def prove_copy(tree: Path, manifest: Manifest, timeout_seconds: float) -> None:
    """Prove a copy with itself first on the path, as `run` starts the server."""
    _prove(tree, manifest, {**os.environ, "PYTHONPATH": search_path(dict(os.environ), first=tree)}, timeout_seconds)


def prove_loaded(root: Path, manifest: Manifest, timeout_seconds: float) -> None:
    """Prove what is loaded without any change of the path, leaving no bytecode behind."""
    _prove(root, manifest, {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, timeout_seconds)


def _prove(root: Path, manifest: Manifest, environment: dict[str, str], timeout_seconds: float) -> None:
    say(f"import check of {root / PACKAGE}")
    gate.prove(root, claims_of(manifest), environment, say=say, timeout_seconds=timeout_seconds)


def verified(root: Path) -> Manifest:
    """Return the manifest of a tree that is exactly as this program patched it.

    Raises Refusal(UnknownPatchState) otherwise, with the files that differ.
    """
    manifest = Manifest.read(root)
    if manifest is None:
        raise _unknown(f"{root} holds no patched SGLang (no readable manifest). Run `apply` first.", root, None)
    again = "apply --in-place" if Journal.read(root) is not None else f"apply --to {root}"
    if manifest.generation != GENERATION:
        raise _unknown(
            f"{root} was patched by generation {manifest.generation}, this program is generation {GENERATION}. "
            f"Run `{again}` with this program.",
            root,
            manifest,
        )
    if manifest.import_check == "pending":
        raise _unknown(f"{root} was patched, but its import check did not end. Run `{again}` again.", root, manifest)
    found = differences(root, manifest)
    if found:
        raise _unknown(
            f"{root / PACKAGE} is not as it was patched: {found.sentence()}. Run `{again}` again.", root, manifest
        )
    return manifest


def _unknown(message: str, root: Path, manifest: Manifest | None) -> Refusal:
    return Refusal(Reason.UNKNOWN_PATCH_STATE, message, release=manifest.release if manifest else None, path=str(root))


def patched(manifest: Manifest, root: Path, state: str) -> Outcome:
    """Say what is patched now, and how it got there."""
    message = f"SGLang {manifest.release}: {len(manifest.members)} files patched in {root / PACKAGE}, {state}."
    if manifest.import_check != "passed":
        message += " The import check was skipped."
    say(message)
    return Outcome.patched(message, release=manifest.release, path=manifest.source, digest=manifest.digest)

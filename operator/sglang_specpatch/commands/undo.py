"""`undo`: remove a patched copy, or restore the installed package byte for byte."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import inplace, tree
from ..locate import Found
from ..manifest import Manifest
from ..names import PACKAGE, RUNTIME_DIRECTORY
from ..pristine import root_of
from ..result import Outcome, Reason, Refusal
from .shared import find_source, say


def undo(options: argparse.Namespace) -> Outcome:
    """Take the patch back: remove a copy, or restore the installed files."""
    return _in_place() if options.in_place else _copy(Path(options.to).absolute())


def _copy(target: Path) -> Outcome:
    if not target.is_dir():
        return _undone(f"{target} is not there: nothing to undo.", None, target)
    with tree.locked(target):
        manifest = tree.remove(target)
    if manifest is None:
        return _undone(f"{target} holds no patched SGLang: nothing to undo.", None, target)
    return _undone(f"The patched copy in {target / PACKAGE} was removed.", manifest.release, target)


def _in_place() -> Outcome:
    source = find_source()
    root = root_of(source)
    with inplace.locked(root):
        journal = inplace.undo(root)
    if journal is not None:
        message = f"SGLang {journal.release}: {len(journal.changes)} files restored or removed in {root}."
        return _undone(message, journal.release, source.package)
    if Manifest.read(root) is not None:
        raise _without_originals(source, f"It is a copy that `apply --to {root}` made: use `undo --to {root}`.")
    if (source.package / RUNTIME_DIRECTORY).exists():
        raise _without_originals(source, "Reinstall sglang.")
    return _undone(f"{source.package} is not patched: nothing to undo.", source.release, source.package)


def _without_originals(source: Found, next_step: str) -> Refusal:
    return Refusal(
        Reason.UNKNOWN_PATCH_STATE,
        f"{source.package} is patched, but not in place: no originals are kept beside it. {next_step}",
        release=source.release,
        path=str(source.package),
    )


def _undone(message: str, release: str | None, path: Path) -> Outcome:
    say(message)
    return Outcome.undone(message, release=release, path=str(path))

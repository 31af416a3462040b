"""`show`: the change as a diff against what lies there now."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from .. import tree
from ..names import PACKAGE
from ..result import Outcome
from .shared import find_source, say


def show(options: argparse.Namespace) -> Outcome:
    """Print what would change, as a diff; write nothing."""
    source = find_source(without=Path(options.to).absolute() if options.to else None)
    blueprint = tree.draw(source, import_check="skipped")
    changed = 0
    for path, data in blueprint.written.items():
        place = source.package / path
        before = place.read_bytes() if place.exists() else b""
        if before != data:
            changed += 1
            sys.stdout.writelines(
                difflib.unified_diff(_lines(before), _lines(data), f"a/{PACKAGE}/{path}", f"b/{PACKAGE}/{path}")
            )
    message = f"{changed} files would be written; nothing was."
    say(message)
    return Outcome.shown(message, release=source.release, path=str(source.package), digest=blueprint.manifest.digest)


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8-sig", errors="replace")
    return [line + "\n" for line in text.splitlines()]

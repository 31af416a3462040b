"""pip's list of installed files, kept true: patched files with their new digest, added files as part of the package.

So `pip uninstall` and a reinstall remove what an in-place patch added, and nobody who verifies an installation finds it
damaged.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Collection, Mapping
from pathlib import Path

from .names import PACKAGE


def find(root: Path) -> str | None:
    """Return the path below `root` of the RECORD that lists the package's own files; None for a checkout."""
    for place in sorted(root.glob(f"{PACKAGE}*.dist-info/RECORD")):
        if any(row[:1] == [f"{PACKAGE}/__init__.py"] for row in csv.reader(io.StringIO(place.read_text("utf-8")))):
            return place.relative_to(root).as_posix()
    return None


def rewrite(original: bytes, written: Mapping[str, bytes], unhashed: Collection[str]) -> bytes:
    """Return the list with new entries for `written` and, without digest, for `unhashed`; other lines stay as found."""
    pending, lines = dict(written), []
    text = original.decode()
    end = "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"
    for line in io.StringIO(text, newline=""):
        path = next(csv.reader([line]), [""])[0]
        lines.append(_row(path, pending.pop(path), end) if path in pending else line)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += end
    added = [
        *(_row(path, data, end) for path, data in sorted(pending.items())),
        *(_row(p, None, end) for p in unhashed),
    ]
    return "".join([*lines, *added]).encode()


def _row(path: str, data: bytes | None, end: str) -> str:
    digest, size = "", ""
    if data is not None:
        encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        digest, size = f"sha256={encoded}", str(len(data))
    row = io.StringIO()
    csv.writer(row, lineterminator=end).writerow([path, digest, size])
    return row.getvalue()

"""Pack this package into one executable file, the same bytes for the same sources wherever it is built."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"from sglang_specpatch.__main__ import main\n\nraise SystemExit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build() -> bytes:
    """Return the zipapp: `python3 specpatch.pyz apply --to DIR`. Needs the package as a folder of files."""
    package = Path(__file__).parent
    entries = {"__main__.py": _MAIN}
    for source in package.rglob("*.py"):
        entries[f"{package.name}/{source.relative_to(package).as_posix()}"] = source.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(entries.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return _SHEBANG + packed.getvalue()

"""Pack this package into one executable file, the same bytes for the same sources wherever it is built.

`python3 -m sglang_specpatch.archive specpatch.pyz` writes it.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Sequence
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the archive to the file that is named."""
    parser = argparse.ArgumentParser(prog="python3 -m sglang_specpatch.archive", description="Pack the patch program.")
    parser.add_argument("file", type=Path, help="for example specpatch.pyz")
    options = parser.parse_args(arguments)
    options.file.write_bytes(build())
    options.file.chmod(0o755)


if __name__ == "__main__":
    main()

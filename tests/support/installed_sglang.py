"""An installed SGLang in small, with pip's list of its files, and ways to compare all of it."""

from __future__ import annotations

import base64
import csv
import hashlib
from pathlib import Path

from sglang_specpatch import inplace, tree
from sglang_specpatch.locate import Found

RECORD = "sglang-0.5.16.dist-info/RECORD"
WORKER = "sglang/srt/speculative/eagle_worker_v2.py"
Tree = dict[str, tuple[int, bytes | str]]


def write_record(site: Path) -> None:
    """Write the list of files that pip would have written, bytecode without digests included."""
    rows = []
    for place in sorted((site / "sglang").rglob("*.py")):
        digest = base64.urlsafe_b64encode(hashlib.sha256(place.read_bytes()).digest()).decode().rstrip("=")
        rows.append([place.relative_to(site).as_posix(), f"sha256={digest}", str(place.stat().st_size)])
    (site / RECORD).parent.mkdir()
    (site / RECORD).parent.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.16\n")
    with (site / RECORD).open("w", newline="") as listing:
        csv.writer(listing, lineterminator="\n").writerows([*rows, [RECORD, "", ""]])


def everything(folder: Path) -> Tree:
    """Every folder, file and mode, bytecode included, times too."""
    return {
        place.relative_to(folder).as_posix(): (
            place.stat().st_mode,
            f"{place.stat().st_mtime_ns}:{place.read_bytes()!r}" if place.is_file() else "",
        )
        for place in folder.rglob("*")
    }


def content(folder: Path) -> Tree:
    """Every folder, file and mode, but neither times nor bytecode."""
    return {
        place.relative_to(folder).as_posix(): (place.stat().st_mode, place.read_bytes() if place.is_file() else "")
        for place in folder.rglob("*")
        if "__pycache__" not in place.parts
    }


def apply_quietly(site: Path) -> None:
    with inplace.locked(site):
        blueprint = tree.draw(Found(site / "sglang", "0.5.16"), import_check="skipped")
        plan = inplace.plan(blueprint, site)
        if not plan.is_done():
            inplace.write(plan)
        inplace.seal(plan)

"""What the patch finds in each SGLang release, as the page docs/engine-releases.md.

Layout, files, off path and workers are read from a release's own sources by the patch; what was proven is what the
import check said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_specpatch.layouts import Layout, plan
from sglang_specpatch.liveupdate import SCHEDULER
from sglang_specpatch.runtime.inactive import SUPPORTED_WORKER, unsupported_worker
from sglang_specpatch.worker import CHOICE

INTRODUCTION = """\
<!-- Written by `make releases` from SGLang's wheels; do not edit. -->
# The engine patch, release by release

Every release from {first} to {last} in the package index, {count} of them. What a tree gets is decided by what its
files contain, never by its version; this page is what the patch decided. `make test-engine` fails when a decision has
changed, `make releases-check` when the index has a release that is not here.

- *fields*: where the four settings and their flags are added. An annotated field makes its flag itself; elsewhere the
  field is one line of the dataclass and the flag a call of `add_argument` of its own, each behind the whole statement
  of its neighbour.
- *live update*: where `/set_internal_state` is handled in the scheduler process.
- *worker*: the one whose drafting can be switched. "–": no worker of the release has a zero-step state, so nothing is
  hooked into any. The server starts and serves with drafting always on; a live update of the settings is answered with
  HTTP 400 and the reason, `/server_info` says `active: false` and why, and the operator shows `ThresholdInactive`.
- *without drafts*: the ways a decode step without drafts can be run, see [performance](engine-performance.md).
- *proven*: the checks that passed in a fresh interpreter with the release's real imports.
"""
WORKERS = """
## Which worker obeys

The class that SGLang really loads decides, not flags or versions: the hook sits in its `__init__`. A release's classes
are those that its own choice names. Plug-in workers of a platform are inactive, too. The reason that an inactive one
tells is, with its name: "{reason}".

"""
CONDITIONS = f"""
`{SUPPORTED_WORKER}` itself is inactive under the conditions listed in
[when the threshold can't be obeyed](engine-patch.md#when-the-threshold-cant-be-obeyed), attention data parallelism
among them.
"""


@dataclass(frozen=True)
class Release:
    """One release: its layout as the patch found it, the worker classes it may load, the checks that passed."""

    name: str
    layout: Layout
    workers: tuple[str, ...]
    proven: tuple[str, ...]


def look(name: str, package: Path, log: str) -> Release:
    """Read a release's sources; `log` is what patching it with the import check said.

    Raises Refusal when the patch refuses the sources.
    """

    def read(path: str) -> bytes | None:
        return (package / path).read_bytes() if (package / path).is_file() else None

    proven = tuple(line.removesuffix(" OK") for line in log.splitlines() if line.endswith(" OK"))
    return Release(name, plan(read, name), tuple(sorted(_workers(read(CHOICE), read(SCHEDULER)))), proven)


def _workers(*sources: bytes | None) -> set[str]:
    """Return the worker classes that functions of the sources import: SGLang loads the one it needs late."""
    return {
        alias.name
        for source in sources
        for function in ast.walk(ast.parse(source or b""))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.speculative.")
        for alias in node.names
        if "Worker" in alias.name
    }


def page(releases: Sequence[Release]) -> str:
    """Return the whole page, oldest release first."""
    introduction = INTRODUCTION.format(first=releases[0].name, last=releases[-1].name, count=len(releases))
    head = ("release", "fields", "live update", "worker", "without drafts", "files patched", "proven")
    workers = WORKERS.format(reason=unsupported_worker(type("NGRAMWorker", (), {})()))
    table = _table(head, map(cells, releases))
    obeying = _table(("worker", "releases", "threshold"), _decisions(releases))
    return f"{introduction}\n{table}{workers}{obeying}{CONDITIONS}"


def cells(release: Release) -> tuple[str, ...]:
    """Return the row of one release."""
    layout = release.layout
    return (
        release.name,
        f"`{_short(layout.field_file)}`, {layout.field_style.value}",
        f"`{_short(layout.live_update_file)}`",
        "–" if layout.worker_file is None else f"`{SUPPORTED_WORKER}`",
        _off_paths(layout),
        ", ".join(f"`{Path(member.path).stem}`" for member in layout.members),
        ", ".join(release.proven),
    )


def _off_paths(layout: Layout) -> str:
    hooks = {hook for member in layout.members for hook in member.hooks}
    if layout.worker_file is None:
        return "–"
    return "Decode, ZeroStep" if "off path" in hooks else "ZeroStep"


def _decisions(releases: Sequence[Release]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each worker class and decision, with the releases that it holds for."""
    rows: dict[tuple[str, str], list[int]] = {}
    for number, release in enumerate(releases):
        for worker in release.workers:
            obeys = worker == SUPPORTED_WORKER and release.layout.worker_file is not None
            rows.setdefault((worker, "obeyed" if obeys else "inactive"), []).append(number)
    for (worker, decision), numbers in sorted(rows.items(), key=lambda row: (row[0][1] != "obeyed", row[0])):
        yield f"`{worker}`", ", ".join(_ranges(numbers, [release.name for release in releases])), decision


def _ranges(numbers: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    for start, end in zip(starts, ends, strict=True):
        yield names[start] if start == end else f"{names[start]} … {names[end]}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _short(path: str) -> str:
    return path.removeprefix("srt/")

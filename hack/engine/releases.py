"""Patch every SGLang release of the package index and write what was found into docs/engine-releases.md.

    make releases          patch and prove every known release, write the page
    make releases-check    the same, but change nothing: exit with 1 if the index has a release that is not known, if
                           one is refused or can't be proven, or if the committed page differs

Needs the network for the list of releases, and what `fetch.py env` and `fetch.py tree` fetch.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.version import Version

from engine import fetch, release_table
from sglang_specpatch import archive

PAGE = Path(__file__).resolve().parents[2] / "docs/engine-releases.md"
OLDEST = Version("0.5.6")
APPLY_SECONDS = 900


def main() -> None:
    """Read the command line, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if anything differs")
    checking = parser.parse_args().check
    new = unknown(published(), fetch.pins())
    if new:
        raise SystemExit(
            f"The package index has SGLang {', '.join(new)}, which is not known here. Add the SHA-256 of its wheel to "
            f"hack/engine/{fetch.PINS.name}, run `make test-engine`, then `make releases`."
        )
    text = release_table.page(prove(list(fetch.pins())))
    differences = list(
        difflib.unified_diff(PAGE.read_text().splitlines(), text.splitlines(), "committed", "found", lineterm="")
    )
    if not checking:
        PAGE.write_text(text, encoding="utf-8")
        print(f"{PAGE} written")
    elif differences:
        raise SystemExit("\n".join([*differences, f"{PAGE.name} differs from what was found: run `make releases`."]))


def published() -> list[str]:
    """Return every version of SGLang that the package index offers, without pre-releases."""
    command = [*fetch.PIP, "index", "versions", "sglang"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if listed is None:
        raise SystemExit(f"The package index can't be asked for SGLang: {done.stderr.strip() or done.stdout.strip()}")
    return listed[1].split(", ")


def unknown(published: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the published releases from 0.5.6 on that are not known, oldest first."""
    supported = {name for name in published if Version(name) >= OLDEST}
    return sorted(supported - set(known), key=Version)


def prove(names: Sequence[str]) -> list[release_table.Release]:
    """Patch the releases with the real import check, as many at a time as there are cores."""
    packages = fetch.environment()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "specpatch.pyz")
        program.write_bytes(archive.build())

        def one(name: str) -> release_table.Release:
            tree = fetch.tree(name)
            log = patch(program, tree, packages)
            return release_table.look(name, tree / "sglang", log)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(one, names))


def patch(program: Path, tree: Path, packages: Path) -> str:
    """Patch one tree into a folder that is thrown away and return what was said; stop when it isn't proven."""
    path = os.pathsep.join(map(str, (tree, packages)))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, str(program), "apply", "--to", target]
        done = subprocess.run(
            command,
            env=environment,
            cwd=program.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=APPLY_SECONDS,
        )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}{done.stderr}\nSGLang {tree.name} is not patched and proven, see above")
    return done.stdout


if __name__ == "__main__":
    main()

"""Patch every SGLang release of the package index and write what was found into docs/engine-releases.md.

    make releases-check    ask the package index alone: exit with 1 if it has a release that is not known
    make releases          the same, then patch and prove every known release, and write the page

That the committed page is what is found is a test of its own (`make test-engine`). The index is no part of any test: a
release of SGLang must not fail a change of this repository, so the check is for a schedule, and for before a release.
"""

from __future__ import annotations

import argparse
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
    """Read the command line, ask the index, and write the page unless only that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="ask the package index alone")
    only_asking = parser.parse_args().check
    new = unknown(published(), fetch.pins())
    if new:
        raise SystemExit(
            f"The package index has SGLang {', '.join(new)}, which is not known here. Add the SHA-256 of its wheel to "
            f"hack/engine/{fetch.PINS.name}, then run `make releases` and `make test-engine`."
        )
    print(f"All {len(fetch.pins())} releases of SGLang from {OLDEST} on in the package index are known.")
    if not only_asking:
        PAGE.write_text(release_table.page(prove(list(fetch.pins()))), encoding="utf-8")
        print(f"{PAGE} written")


def published() -> list[str]:
    """Return every version of SGLang that the package index offers, without pre-releases.

    One for other Pythons than this counts, too.
    """
    command = [*fetch.PIP, "index", "versions", "--ignore-requires-python", "sglang"]
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

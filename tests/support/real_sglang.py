"""Real SGLang trees for tests: fetched when missing, patched once per session, as an image's init container does it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from sglang_specpatch import archive

REPOSITORY = Path(__file__).parents[2]
APPLY_SECONDS = 300


def _fetch_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_fetch", REPOSITORY / "hack/engine/fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetch = _fetch_module()
RELEASES: tuple[str, ...] = tuple(fetch.pins())


@dataclass(frozen=True)
class Patched:
    """A patched tree, what the patcher said, and how long it took."""

    release: str
    directory: Path
    exit_code: int
    log: str
    result: dict[str, Any]
    seconds: float


@dataclass
class Workshop:
    """Patches trees in a folder of the session."""

    folder: Path
    _made: dict[str, Patched] = field(default_factory=dict)

    def source(self, release: str) -> Path:
        """Return the pristine package of a release."""
        tree: Path = fetch.tree(release)
        return tree / "sglang"

    def environment(self, *first: Path, **variables: str) -> dict[str, str]:
        """Return an environment in which a tree given by its parent folder can be imported."""
        packages: Path = fetch.environment()
        path = os.pathsep.join(map(str, [*first, packages]))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {**inherited, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **variables}

    @property
    def program(self) -> Path:
        """Return the one-file program, as it is mounted into a pod."""
        place = self.folder / "specpatch.pyz"
        if not place.exists():
            place.write_bytes(archive.build())
        return place

    def run(self, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the program in an empty working directory."""
        place = self.folder / "work"
        place.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, str(self.program), *arguments],
            env=environment,
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=APPLY_SECONDS,
        )

    def apply(self, parent: Path, target: Path, *options: str, **variables: str) -> Patched:
        """Patch the tree in `parent` into `target`."""
        began = time.monotonic()
        done = self.run(
            "apply", "--to", str(target), "--json", *options, environment=self.environment(parent, **variables)
        )
        result = json.loads(done.stdout.splitlines()[-1])
        return Patched(str(result["release"]), target, done.returncode, done.stdout, result, time.monotonic() - began)

    def patched(self, release: str) -> Patched:
        """Return the patched tree of a release, with the import check; made once."""
        if release not in self._made:
            parent = self.source(release).parent
            self._made[release] = self.apply(parent, self.folder / release)
        return self._made[release]

    def copy(self, release: str, name: str) -> Path:
        """Return a copy of the pristine package under a folder of its own, to be damaged."""
        target = self.folder / name
        shutil.copytree(self.source(release), target / "sglang", ignore=shutil.ignore_patterns("__pycache__", "test"))
        return target

"""Real SGLang trees for tests: fetched when missing, patched once per session, as an image's init container does it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sglang_specpatch import archive

REPOSITORY = Path(__file__).parents[2]
APPLY_SECONDS = 300
OBSERVE_SECONDS = 240


def _fetch_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_fetch", REPOSITORY / "hack/engine/fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetch = _fetch_module()
RELEASES: tuple[str, ...] = tuple(fetch.pins())


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Let one process at a time in."""
    with place.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def shared_folder(folder: Path) -> Iterator[Path]:
    """Give several processes one folder; the last one to leave removes it."""
    gate, mark = folder.with_suffix(".lock"), folder / f"user-{os.getpid()}"
    with locked(gate):
        folder.mkdir(exist_ok=True)
        mark.touch()
    try:
        yield folder
    finally:
        with locked(gate):
            mark.unlink()
            if not list(folder.glob("user-*")):
                shutil.rmtree(folder)


@dataclass(frozen=True)
class Patched:
    """A patched tree, and what the patcher said."""

    release: str
    directory: Path
    exit_code: int
    log: str
    result: dict[str, Any]

    def write(self, record: Path) -> None:
        """Keep what is known of the tree for another process."""
        record.write_text(json.dumps({**asdict(self), "directory": str(self.directory)}))

    @staticmethod
    def read(record: Path) -> Patched:
        """Return what another process kept."""
        content = json.loads(record.read_text())
        return Patched(**{**content, "directory": Path(content["directory"])})


@functools.cache
def _observed(
    program: str, arguments: tuple[str, ...], environment: tuple[tuple[str, str], ...], folder: Path
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, program, *arguments],
        env=dict(environment), cwd=folder, capture_output=True, text=True, check=False, timeout=OBSERVE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@dataclass
class Workshop:
    """Patches trees in a folder of its own, and every release once in one that the processes of a session share."""

    folder: Path
    shared: Path | None = None

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
        done = self.run(
            "apply", "--to", str(target), "--json", *options, environment=self.environment(parent, **variables)
        )
        result = json.loads(done.stdout.splitlines()[-1])
        return Patched(str(result["release"]), target, done.returncode, done.stdout, result)

    def patched(self, release: str) -> Patched:
        """Return the patched tree of a release, with the import check; made once, by whoever needs it first."""
        folder = self.shared or self.folder
        record = folder / f"{release}.json"
        with locked(folder / f"{release}.lock"):
            if not record.exists():
                self.apply(self.source(release).parent, folder / release).write(record)
        return Patched.read(record)

    def observe(self, program: str, release: str, *arguments: str, **variables: str) -> dict[str, Any]:
        """Run a program beside this file in the patched tree of a release; return the JSON object that it prints last.

        Run once for the same arguments.
        """
        patched = self.patched(release)
        assert patched.exit_code == 0, patched.log
        environment = self.environment(patched.directory, **variables)
        return _observed(
            str(Path(__file__).with_name(program)), arguments, tuple(sorted(environment.items())), self.folder
        )

    def copy(self, release: str, name: str) -> Path:
        """Return a copy of the pristine package under a folder of its own, to be damaged."""
        target = self.folder / name
        shutil.copytree(self.source(release), target / "sglang", ignore=shutil.ignore_patterns("__pycache__", "test"))
        return target

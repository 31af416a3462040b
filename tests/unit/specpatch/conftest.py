"""An installed SGLang in small, and the program run on it."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mini_sglang
import pytest
from installed_sglang import WORKER, write_record

from sglang_specpatch import __main__ as program
from sglang_specpatch import runtime_files

Run = Callable[..., dict[str, str]]


@pytest.fixture(params=["old", "new"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel's files as an image has them: modes of their own, compiled, listed."""
    folder = tmp_path / "site"
    mini_sglang.write(folder, mini_sglang.LAYOUTS[request.param])
    write_record(folder)
    (folder / WORKER).chmod(0o640)
    (folder / "sglang/srt/server_args.py").chmod(0o755)
    for place in (folder / "sglang").rglob("*.py"):
        os.utime(place, (1_600_000_000, 1_600_000_000))
        py_compile.compile(str(place), doraise=True)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


@pytest.fixture
def old_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plain case, and quick: no import check takes part."""
    few = {name: data for name, data in runtime_files.read().items() if name in ("__init__.py", "hooks.py")}
    monkeypatch.setattr(runtime_files, "read", lambda: few)
    mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    write_record(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "site"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> dict[str, str]:
        code = program.main([*arguments, "--json"])
        result: dict[str, str] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return {**result, "code": str(code)}

    return call


@pytest.fixture
def patch(run: Run) -> Run:
    def call(*options: str) -> dict[str, str]:
        return run("apply", "--in-place", "--no-import-check", *options)

    return call


@pytest.fixture
def world_readable() -> Iterator[Callable[[], Path]]:
    """Make folders that every user can enter; those of pytest are closed to others."""
    made: list[Path] = []

    def make() -> Path:
        folder = Path(tempfile.mkdtemp(prefix="specpatch-"))
        folder.chmod(0o755)
        made.append(folder)
        return folder

    yield make
    for folder in made:
        shutil.rmtree(folder)

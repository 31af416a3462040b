"""The one-file program: the same bytes for the same sources, and nothing but the standard library in it."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import mini_sglang
import pytest

import sglang_specpatch
from sglang_specpatch import archive, runtime_files

PACKAGE = Path(sglang_specpatch.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_two_builds_are_equal_wherever_the_sources_lie(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "sglang_specpatch"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for place in copy.rglob("*.py"):
        os.utime(place, (1, 1))
    code = "import sys; from sglang_specpatch import archive; sys.stdout.buffer.write(archive.build())"
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    built = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=30)
    assert built.stdout == archive.build()


def test_the_archive_holds_every_module_and_no_bytecode() -> None:
    with zipfile.ZipFile(io.BytesIO(archive.build())) as packed:
        names = set(packed.namelist())
    assert names == {"__main__.py", *(f"sglang_specpatch/{place.relative_to(PACKAGE).as_posix()}" for place in SOURCES)}
    assert {f"{name}.py" for name in runtime_files.MODULES} == {
        place.name for place in (PACKAGE / "runtime").glob("*.py")
    }


def test_the_archive_runs_and_finds_its_own_sources(tmp_path: Path) -> None:
    program = tmp_path / "specpatch.pyz"
    program.write_bytes(archive.build())
    mini_sglang.write(tmp_path, mini_sglang.OLD_LAYOUT)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program, "show"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+++ b/sglang/srt/speculative/specpatch/hooks.py" in done.stdout
    assert "+        specpatch.attach(self)" in done.stdout


@pytest.mark.parametrize("place", SOURCES, ids=lambda place: place.relative_to(PACKAGE).as_posix())
def test_a_module_is_python_3_10_and_standard_library_only(place: Path) -> None:
    tree = ast.parse(place.read_bytes(), feature_version=(3, 10))
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        for module in modules:
            assert module.split(".")[0] in sys.stdlib_module_names, f"{place} imports {module}"


def _interpreter(version: str) -> str | None:
    """Find another Python on the path or among those of pyenv; its shims start only what is activated."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [*map(str, root.glob(f"versions/{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False, timeout=30).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
@pytest.mark.parametrize("layout", ["old", "new"])
def test_it_patches_and_proves_on_other_pythons(version: str, layout: str, tmp_path: Path) -> None:
    interpreter = _interpreter(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine")
    program = tmp_path / "specpatch.pyz"
    program.write_bytes(archive.build())
    package = mini_sglang.write(tmp_path / "site", mini_sglang.LAYOUTS[layout])
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [interpreter, str(program), "apply", "--to", str(tmp_path / "out")]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "live update OK" in done.stdout.splitlines()

"""pip and an in-place patch: what `pip check`, a reinstall and `pip uninstall` see, with the real pip."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import mini_sglang
import pytest
from installed_sglang import everything, write_record

from sglang_specpatch import archive

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class Installation:
    """A virtual environment with SGLang in it, put there by pip from a wheel."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv/bin/python"
        self.site = next((folder / "venv").glob("lib/python*/site-packages"))
        self.before = everything(self.site)
        self._folder = folder
        self._program = folder / "specpatch.pyz"
        self._program.write_bytes(archive.build())
        (folder / "work").mkdir()
        self.wheel = self._build()
        self.pip("install", "--no-index", "--no-deps", str(self.wheel))

    def _build(self) -> Path:
        content = self._folder / "content"
        mini_sglang.write(content, mini_sglang.OLD_LAYOUT)
        write_record(content)
        (content / "sglang-0.5.16.dist-info/WHEEL").write_text(WHEEL)
        wheel = self._folder / "sglang-0.5.16-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            for place in sorted(content.rglob("*")):
                packed.write(place, place.relative_to(content))
        return wheel

    def pip(self, *arguments: str) -> str:
        """Run pip on this environment and return what it printed."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def specpatch(self, *arguments: str) -> str:
        """Run the patch program with the interpreter of this environment."""
        done = subprocess.run(
            [str(self.python), str(self._program), *arguments],
            env={"PATH": "/usr/bin:/bin"},
            cwd=self._folder / "work",
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_undo_leaves_what_pip_installed(installation: Installation) -> None:
    installed = everything(installation.site)
    installation.specpatch("apply", "--in-place")
    assert installation.pip("check") == "No broken requirements found.\n"
    installation.specpatch("undo", "--in-place")
    assert everything(installation.site) == installed


def test_uninstall_removes_what_the_patch_added(installation: Installation) -> None:
    installation.specpatch("apply", "--in-place")
    installation.pip("uninstall", "--yes", "sglang")
    left = everything(installation.site)
    assert set(left) - set(installation.before) <= {"fastapi.py"}
    left.pop("fastapi.py", None)
    assert set(left) == set(installation.before)


def test_a_reinstall_takes_the_patch_away_and_it_can_be_applied_again(installation: Installation) -> None:
    installed = set(everything(installation.site))
    installation.specpatch("apply", "--in-place")
    installation.pip("install", "--force-reinstall", "--no-index", "--no-deps", str(installation.wheel))
    assert set(everything(installation.site)) == installed
    assert "put in place" in installation.specpatch("apply", "--in-place")

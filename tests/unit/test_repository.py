"""Properties of the repository itself."""

from __future__ import annotations

import operator
import pathlib
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).parents[2]


def test_the_folder_operator_does_not_shadow_the_standard_library() -> None:
    assert operator.__file__ is not None
    standard = pathlib.Path(sysconfig.get_path("stdlib"))
    assert pathlib.Path(operator.__file__).is_relative_to(standard)


def test_import_operator_from_the_root_of_the_checkout() -> None:
    code = "import operator, collections; print(operator.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": "."}, capture_output=True, text=True, timeout=30
    )
    assert found.returncode == 0, found.stderr
    assert not found.stdout.startswith(str(ROOT))


def test_the_folder_operator_holds_no_module_of_its_own() -> None:
    assert not list((ROOT / "operator").glob("*.py"))


def test_one_version_everywhere() -> None:
    namespace: dict[str, str] = {}
    exec((ROOT / "operator/sglang_operator/__init__.py").read_text(), namespace)
    version = namespace["__version__"]
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()

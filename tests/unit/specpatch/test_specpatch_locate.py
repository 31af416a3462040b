"""The tree that is patched is the one that the server's own import system would load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import mini_sglang
import pytest

from sglang_specpatch import archive
from sglang_specpatch.locate import locate, release_of, search_path
from sglang_specpatch.result import Reason, Refusal

FINDER = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sglang":
            return importlib.util.spec_from_file_location(
                name, {origin!r}, submodule_search_locations=[{package!r}])
        return None

sys.meta_path.append(Finder)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("program") / "specpatch.pyz"
    place.write_bytes(archive.build())
    return place


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """An interpreter with site-packages of its own."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return tmp_path / "venv/bin/python"


def _site(interpreter: Path) -> Path:
    return next(interpreter.parents[1].glob("lib/python*/site-packages"))


def _show(program: Path, interpreter: Path | str, cwd: Path, **variables: str) -> tuple[int, dict[str, object], str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(
        [interpreter, program, "show", "--json"],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_a_wheel_in_site_packages(program: Path, interpreter: Path, tmp_path: Path) -> None:
    package = mini_sglang.write(_site(interpreter), mini_sglang.OLD_LAYOUT)
    code, result, log = _show(program, interpreter, tmp_path)
    assert (code, result["path"], result["release"]) == (0, str(package), "0.5.16")
    assert log.startswith(f"SGLang 0.5.16 in {package}\n")


def test_an_editable_checkout_on_a_pth_file(program: Path, interpreter: Path, tmp_path: Path) -> None:
    package = mini_sglang.write(tmp_path / "sgl-workspace/sglang/python", mini_sglang.OLD_LAYOUT)
    (_site(interpreter) / "__editable__.pth").write_text(f"{package.parent}\n")
    code, result, _ = _show(program, interpreter, tmp_path)
    assert (code, result["path"]) == (0, str(package))


def test_an_editable_checkout_with_a_finder_hook(program: Path, interpreter: Path, tmp_path: Path) -> None:
    package = mini_sglang.write(tmp_path / "sgl-workspace/sglang/python", mini_sglang.OLD_LAYOUT)
    finder = FINDER.format(origin=str(package / "__init__.py"), package=str(package))
    (_site(interpreter) / "_finder.py").write_text(finder)
    (_site(interpreter) / "finder.pth").write_text("import _finder\n")
    code, result, _ = _show(program, interpreter, tmp_path / "venv")
    assert (code, result["path"]) == (0, str(package))


def test_with_both_the_search_path_decides(program: Path, interpreter: Path, tmp_path: Path) -> None:
    mini_sglang.write(_site(interpreter), mini_sglang.OLD_LAYOUT)
    package = mini_sglang.write(tmp_path / "checkout", mini_sglang.NEW_LAYOUT)
    code, result, _ = _show(program, interpreter, tmp_path, PYTHONPATH=str(package.parent))
    assert (code, result["path"]) == (0, str(package))


def test_a_bare_folder_that_hides_an_editable_checkout_is_refused(
    program: Path, interpreter: Path, tmp_path: Path
) -> None:
    package = mini_sglang.write(tmp_path / "checkout", mini_sglang.OLD_LAYOUT)
    finder = FINDER.format(origin=str(package / "__init__.py"), package=str(package))
    (_site(interpreter) / "_finder.py").write_text(finder)
    (_site(interpreter) / "finder.pth").write_text("import _finder\n")
    (tmp_path / "work/sglang").mkdir(parents=True)
    code, result, _ = _show(program, interpreter, tmp_path / "work")
    assert (code, result["reason"]) == (3, "SourceNotFound")
    assert "bare folder without __init__.py" in str(result["message"])
    assert str(tmp_path / "work/sglang") in str(result["message"])


def test_a_bare_folder_that_hides_nothing_is_passed_over_and_said(
    program: Path, interpreter: Path, tmp_path: Path
) -> None:
    """Python takes a real package later on the path before a folder without __init__.py."""
    package = mini_sglang.write(_site(interpreter), mini_sglang.OLD_LAYOUT)
    (tmp_path / "work/sglang").mkdir(parents=True)
    code, result, log = _show(program, interpreter, tmp_path / "work")
    assert (code, result["path"]) == (0, str(package))
    assert f"note: {tmp_path / 'work/sglang'} is a bare folder without __init__.py, which Python passes over" in log


def test_a_bare_folder_alone_is_refused(program: Path, interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / "work/sglang").mkdir(parents=True)
    code, result, _ = _show(program, interpreter, tmp_path / "work")
    assert (code, result["reason"]) == (3, "SourceNotFound")
    assert "bare folder without __init__.py" in str(result["message"])


def test_a_real_folder_in_the_working_directory_is_what_the_server_loads(
    program: Path, interpreter: Path, tmp_path: Path
) -> None:
    mini_sglang.write(_site(interpreter), mini_sglang.OLD_LAYOUT)
    package = mini_sglang.write(tmp_path / "work", mini_sglang.NEW_LAYOUT)
    code, result, _ = _show(program, interpreter, tmp_path / "work")
    assert (code, result["path"]) == (0, str(package))
    code, result, _ = _show(program, interpreter, tmp_path / "work", PYTHONSAFEPATH="1")
    assert (code, result["path"]) == (0, str(_site(interpreter) / "sglang"))


def test_a_zip_on_the_path_is_refused(program: Path, interpreter: Path, tmp_path: Path) -> None:
    package = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    with zipfile.ZipFile(tmp_path / "sglang.zip", "w") as packed:
        for place in package.rglob("*"):
            packed.write(place, place.relative_to(package.parent))
    code, result, _ = _show(program, interpreter, tmp_path, PYTHONPATH=str(tmp_path / "sglang.zip"))
    assert (code, result["reason"]) == (3, "UnsupportedSource")
    assert "sglang.zip" in str(result["message"])


def test_a_zip_behind_a_real_package_is_not_loaded(program: Path, interpreter: Path, tmp_path: Path) -> None:
    package = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    with zipfile.ZipFile(tmp_path / "sglang.zip", "w") as packed:
        packed.write(package / "__init__.py", "sglang/__init__.py")
    path = os.pathsep.join([str(package.parent), str(tmp_path / "sglang.zip")])
    code, result, _ = _show(program, interpreter, tmp_path, PYTHONPATH=path)
    assert (code, result["path"]) == (0, str(package))


def test_an_image_without_sglang_is_refused(program: Path, interpreter: Path, tmp_path: Path) -> None:
    code, result, _ = _show(program, interpreter, tmp_path)
    assert (code, result["reason"], result["release"]) == (3, "SourceNotFound", None)
    assert "Use an image that holds SGLang" in str(result["message"])


def test_an_interpreter_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        locate(dict(os.environ), interpreter=[str(tmp_path / "python3")])
    assert caught.value.reason is Reason.SOURCE_NOT_FOUND
    assert "can't be asked for sglang" in caught.value.message


def test_an_interpreter_whose_search_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('broken site')")
    with pytest.raises(Refusal) as caught:
        locate({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert caught.value.reason is Reason.SOURCE_NOT_FOUND


def test_what_a_site_prints_is_no_answer(program: Path, interpreter: Path, tmp_path: Path) -> None:
    package = mini_sglang.write(_site(interpreter), mini_sglang.OLD_LAYOUT)
    (_site(interpreter) / "chatty.py").write_text("import atexit; print('hello'); atexit.register(print, '{}')\n")
    (_site(interpreter) / "chatty.pth").write_text("import chatty\n")
    command = [str(interpreter), str(program), "show"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"SGLang 0.5.16 in {package}" in done.stdout.splitlines()


def _distribution(site: Path, version: str, checkout: Path | None = None) -> None:
    info = site / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    if checkout is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}}))


@pytest.mark.parametrize("place", ["beside it", "editable", "of another package"])
def test_a_tree_that_says_no_release_gets_that_of_its_own_distribution(
    place: str, program: Path, interpreter: Path, tmp_path: Path
) -> None:
    layout = {path: text for path, text in mini_sglang.OLD_LAYOUT.items() if path != "_version.py"}
    site, checkout = _site(interpreter), tmp_path / "sgl workspace/sglang"
    package = mini_sglang.write(site if place == "beside it" else checkout / "python", layout)
    _distribution(site, "0.5.99", checkout / "python" if place == "editable" else None)
    path = str(package.parent)
    code, result, log = _show(program, interpreter, tmp_path, PYTHONPATH=path)
    assert (code, result["path"]) == (0, str(package))
    assert result["release"] == (None if place == "of another package" else "0.5.99")
    assert log.startswith(f"SGLang {result['release'] or 'of unknown release'} in {package}\n")


def test_a_patched_tree_on_the_path_is_not_its_own_source(tmp_path: Path) -> None:
    package = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    patched = mini_sglang.write(tmp_path / "patched", mini_sglang.OLD_LAYOUT)
    environment = {**os.environ, "PYTHONPATH": f"{patched.parent}{os.pathsep}{package.parent}"}
    assert locate(environment).package == patched
    assert locate(environment, without=patched.parent).package == package


def test_the_search_path_keeps_what_it_held() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(["/a", "/p", "/b"])}
    assert search_path(environment, first=Path("/p")) == os.pathsep.join(["/p", "/a", "/b"])
    assert search_path(environment, without=Path("/p")) == os.pathsep.join(["/a", "/b"])
    assert search_path({}, first=Path("/p")) == "/p"


@pytest.mark.parametrize(
    ("files", "release"),
    [
        ({"_version.py": "__version__ = version = '0.5.23'\n"}, "0.5.23"),
        ({"version.py": "__version__ = '0.5.14.post1'\n"}, "0.5.14.post1"),
        (
            {
                "_version.py": "broken(",
                "version.py": "try:\n    from x import __version__\nexcept ImportError:\n    pass\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_the_release_is_read_from_the_tree(files: dict[str, str], release: str | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert release_of(tmp_path) == release


def test_the_tests_run_under_an_interpreter_without_sglang() -> None:
    assert subprocess.run([sys.executable, "-c", "import sglang"], capture_output=True, check=False).returncode != 0

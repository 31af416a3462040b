"""The command line: one zipapp file and `python3 -m`, every command with `--json`, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import mini_sglang
import pytest

from sglang_specpatch import __main__ as program
from sglang_specpatch import archive
from sglang_specpatch.commands.run import interpreter_of
from sglang_specpatch.result import Reason

REPOSITORY = Path(__file__).parents[3]
OPERATOR = REPOSITORY / "operator"
DOCUMENT = REPOSITORY / "docs/engine-patch.md"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    monkeypatch.setenv("PYTHONPATH", str(made.parent))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


def _process(way: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if way == "zipapp":
        (folder / "specpatch.pyz").write_bytes(archive.build())
        command = [sys.executable, str(folder / "specpatch.pyz")]
    else:
        command = [sys.executable, "-m", "sglang_specpatch"]
        environment["PYTHONPATH"] = os.pathsep.join([str(OPERATOR), environment["PYTHONPATH"]])
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("way", ["zipapp", "module"])
def test_every_command_ends_with_a_json_line_and_its_code(way: str, package: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for arguments, result in (
        (("show", "--json"), "Shown"),
        (("apply", "--to", out, "--no-import-check", "--json"), "Patched"),
        (("run", "--tree", out, "--json", "--", "true"), "Patched"),
        (("undo", "--to", out, "--json"), "Undone"),
        (("undo", "--to", out, "--json"), "Undone"),
        (("apply", "--in-place", "--json"), "Patched"),
        (("check", "--json"), "Patched"),
        (("run", "--json", "--", "true"), "Patched"),
        (("undo", "--in-place", "--json"), "Undone"),
    ):
        done = _process(way, tmp_path, *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        line = json.loads(done.stdout.splitlines()[-1])
        assert line["result"] == result
        assert set(line) == {"result", "reason", "message", "release", "path", "generation", "digest"}
        assert line["release"] in ("0.5.16", None)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["apply"],
        ["undo"],
        ["apply", "--to", "x", "--in-place"],
        ["apply", "--in-pla"],
        ["check", "--to", "x"],
        ["fly"],
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert "usage: specpatch" in capsys.readouterr().err


def test_show_prints_the_diff_and_writes_nothing(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {place: place.stat().st_mtime_ns for place in package.parent.rglob("*")}
    assert program.main(["show"]) == 0
    diff = capsys.readouterr().out
    assert "--- a/sglang/srt/speculative/eagle_worker_v2.py\n+++ b/sglang/srt/speculative/eagle_worker_v2.py\n" in diff
    assert "\n+        specpatch.attach(self)\n" in diff
    removed = [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert removed == [], "hooks are added, nothing is taken away"
    assert {place: place.stat().st_mtime_ns for place in package.parent.rglob("*")} == before


def test_show_is_empty_where_nothing_would_change(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["apply", "--in-place", "--no-import-check"])
    capsys.readouterr()
    assert program.main(["show"]) == 0
    said = capsys.readouterr().out
    assert "@@" not in said
    assert "0 files would be written" in said


def test_the_document_names_every_exit_code_and_reason_and_command() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for reason in Reason:
        assert f"`{reason.value}`" in text, reason
    for command in ("apply", "check", "show", "undo", "run"):
        assert re.search(rf"^\| `{command}\b", text, re.MULTILINE), command
    for code in (0, 2, 3, 4, 5):
        assert re.search(rf"^\| {code} \|", text, re.MULTILINE), code


# run


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        (["python3", "-m", "sglang.launch_server"], []),
        (["python3", "-I", "-m", "sglang.launch_server", "-E"], ["-I"]),
        (
            ["python3", "-X", "importtime", "-W", "error", "-B", "server.py", "-I"],
            ["-X", "importtime", "-W", "error", "-B"],
        ),
        (["python3", "-Xdev", "-c", "x"], ["-Xdev"]),
        (["python3", "-"], []),
    ],
)
def test_the_interpreter_of_a_command_line_is_found_with_its_options(
    command: list[str], interpreter: list[str]
) -> None:
    found = interpreter_of(command)
    assert Path(found[0]).name == "python3"
    assert found[1:] == interpreter


@pytest.mark.parametrize("command", [["sglang", "serve"], ["bash", "-c", "python3 -m sglang.launch_server"]])
def test_another_program_is_no_interpreter(command: list[str]) -> None:
    assert interpreter_of(command) == []


def _run(out: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return _process("module", out.parent, "run", "--tree", str(out), "--", *command)


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_a_server_that_ignores_the_path_is_not_started(option: str, package: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program.main(["apply", "--to", str(out), "--no-import-check"])
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv/bin/python"
    mini_sglang.write(next((tmp_path / "venv").glob("lib/python*/site-packages")), mini_sglang.OLD_LAYOUT)
    refused = _run(out, str(python), option, "-m", "sglang.launch_server")
    assert refused.returncode == 3
    assert "something comes before PYTHONPATH" in refused.stdout
    served = _run(out, str(python), "-m", "sglang.launch_server")
    assert served.stdout.splitlines()[-1] == f"serving from {out}/sglang/srt/server_args.py"


def test_a_server_of_an_interpreter_with_a_finder_that_comes_first_is_not_started(
    package: Path, tmp_path: Path
) -> None:
    """Editable installs of some build tools put their finder before the path."""
    out = tmp_path / "out"
    program.main(["apply", "--to", str(out), "--no-import-check"])
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (site / "first.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == 'sglang':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(package / '__init__.py')!r},\n"
        f"                submodule_search_locations=[{str(package)!r}])\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    (site / "first.pth").write_text("import first\n")
    refused = _run(out, str(tmp_path / "venv/bin/python"), "-m", "sglang.launch_server")
    assert refused.returncode == 3
    assert f"would load {package}" in refused.stdout


def test_run_without_a_command_says_so(package: Path, tmp_path: Path) -> None:
    program.main(["apply", "--to", str(tmp_path / "out"), "--no-import-check"])
    refused = _run(tmp_path / "out")
    assert refused.returncode == 3
    assert "No command to run was given" in refused.stdout

"""Stale bytecode can't win over a patched file, however it came about: each kind, with a real interpreter."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mini_sglang
import pytest

from sglang_specpatch import __main__ as program
from sglang_specpatch import archive, bytecode

MEMBER = "sglang/srt/speculative/eagle_worker_v2.py"
OPERATOR = Path(program.__file__).parents[1]
LOADED = (
    "import sglang.srt.speculative.eagle_worker_v2 as m; print('detach' in m.EAGLEWorkerV2.__init__.__code__.co_names)"
)


def _wrong_code(member: Path) -> bytes:
    wrong = member.read_text().replace("specpatch.attach(self)", "specpatch.detach(self)")
    assert wrong != member.read_text()
    return marshal.dumps(compile(wrong, str(member), "exec", dont_inherit=True))


def _header(member: Path, kind: str) -> bytes:
    """The first 16 bytes of a cache that the import system takes for that of the member."""
    if kind == "timestamp":
        status = member.stat()
        fields = [0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF]
        return importlib.util.MAGIC_NUMBER + b"".join(field.to_bytes(4, "little") for field in fields)
    flags = {"checked": 0b11, "unchecked": 0b01}[kind]
    return importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + importlib.util.source_hash(member.read_bytes())


def plant(member: Path, kind: str) -> Path:
    """Leave a cache with other code than the member's."""
    cached = Path(importlib.util.cache_from_source(str(member)))
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_bytes(_header(member, kind) + _wrong_code(member))
    return cached


@pytest.fixture(params=["copy", "in place"])
def patched(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Command words of a patched SGLang: those of `apply`, and those that choose the tree for `check` and `run`."""
    mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    form = ["--in-place"] if request.param == "in place" else ["--to", str(tmp_path / "out")]
    assert program.main(["apply", "--no-import-check", *form]) == 0
    return form


def _root(form: list[str], tmp_path: Path) -> Path:
    return tmp_path / ("site" if form == ["--in-place"] else "out")


def _chosen(form: list[str]) -> list[str]:
    return [] if form == ["--in-place"] else ["--tree", form[1]]


def _what_a_server_loads(form: list[str], tmp_path: Path) -> str:
    path = os.pathsep.join([str(_root(form, tmp_path)), str(OPERATOR)])
    done = subprocess.run(
        [sys.executable, "-m", "sglang_specpatch", "run", *_chosen(form), "--", sys.executable, "-B", "-c", LOADED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", ["timestamp", "checked", "unchecked"])
def test_every_kind_of_cache_would_win_without_us(kind: str, patched: list[str], tmp_path: Path) -> None:
    """The cases below prove nothing unless Python itself would run the planted code."""
    plant(_root(patched, tmp_path) / MEMBER, kind)
    done = subprocess.run(
        [sys.executable, "-B", "-c", LOADED],
        env={**os.environ, "PYTHONPATH": str(_root(patched, tmp_path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize("kind", ["timestamp", "checked", "unchecked"])
def test_it_is_found_by_check_and_removed_by_run_and_apply(
    kind: str, patched: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = _root(patched, tmp_path) / MEMBER
    plant(member, kind)
    assert program.main(["check", *_chosen(patched)]) == 4
    assert "bytecode that is not of" in capsys.readouterr().out
    assert _what_a_server_loads(patched, tmp_path) == "False"
    cached = plant(member, kind)
    assert program.main(["apply", "--no-import-check", *patched]) == 0
    assert not cached.exists()
    assert _what_a_server_loads(patched, tmp_path) == "False"


@pytest.mark.parametrize("kind", ["timestamp", "unchecked"])
def test_it_is_found_under_a_prefix(
    kind: str, patched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    cached = plant(_root(patched, tmp_path) / MEMBER, kind)
    assert cached.is_relative_to(tmp_path / "cache")
    assert program.main(["check", *_chosen(patched)]) == 4
    assert "bytecode that is not of" in capsys.readouterr().out
    assert _what_a_server_loads(patched, tmp_path) == "False"
    assert not cached.exists()


def test_caches_of_the_originals_do_not_outlive_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image compiled without checks (`compileall --invalidation-mode unchecked-hash`) and then patched."""
    package = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for place in package.rglob("*.py"):
        py_compile.compile(str(place), doraise=True, invalidation_mode=mode)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)
    assert program.main(["apply", "--in-place"]) == 0
    assert program.main(["check"]) == 0
    program.main(["undo", "--in-place"])
    done = subprocess.run(
        [sys.executable, "-c", "import sglang.srt.server_args as s; print(vars(s.ServerArgs).keys())"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "speculative_disable_batch_threshold" not in done.stdout


def test_a_cache_that_is_right_stays(patched: list[str], tmp_path: Path) -> None:
    member = _root(patched, tmp_path) / MEMBER
    cached = py_compile.compile(str(member), doraise=True)
    assert cached is not None
    assert program.main(["apply", "--no-import-check", *patched]) == 0
    assert Path(cached).exists()
    assert _what_a_server_loads(patched, tmp_path) == "False"
    assert Path(cached).exists()


@pytest.mark.parametrize("garbage", [b"", b"abc", importlib.util.MAGIC_NUMBER + bytes(12) + b"\xff\xff"])
def test_a_cache_that_is_no_cache_does_not_stop_anything(garbage: bytes, tmp_path: Path) -> None:
    source = tmp_path / "member.py"
    source.write_text("x = 1\n")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir()
    cached.write_bytes(garbage)
    assert bytecode.drop_stale([source]) == []
    subprocess.run([sys.executable, "-c", "import member"], cwd=tmp_path, check=True, timeout=60)


Folder = Callable[[], Path]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
@pytest.mark.parametrize("form", ["copy", "in place"])
def test_it_is_refused_where_it_cannot_be_removed(form: str, tmp_path: Path, world_readable: Folder) -> None:
    """A `__pycache__` that belongs to somebody else, in an installation that is ours."""
    folder = world_readable()
    package = mini_sglang.write(folder / "site", mini_sglang.OLD_LAYOUT)
    (folder / "specpatch.pyz").write_bytes(archive.build())
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent), "HOME": "/nonexistent"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, str(folder / "specpatch.pyz"), *arguments],
            env=environment, cwd="/", user=1000800000, group=0, extra_groups=[],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    for place in [folder, *folder.rglob("*")]:
        os.chown(place, 1000800000, 0)
    words = ["--in-place"] if form == "in place" else ["--to", str(folder / "out")]
    root = folder / ("site" if form == "in place" else "out")
    assert call("apply", "--no-import-check", *words).returncode == 0
    tag = subprocess.run(
        [python, "-c", "import sys; print(sys.implementation.cache_tag, sys.version_info[:2] == (3, 11))"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    member = root / MEMBER
    if tag[1] != str(sys.version_info[:2] == (3, 11)):
        pytest.skip("the system's Python is another than that of the tests: bytecode can't be planted for it")
    cached = plant(member, "unchecked")
    os.chown(cached.parent, 0, 0)
    cached.parent.chmod(0o755)
    chosen = [] if form == "in place" else ["--tree", str(root)]
    refused = call("run", *chosen, "--json", "--", python, "-c", "print('serving')")
    assert "serving" not in refused.stdout
    result = json.loads(refused.stdout.splitlines()[-1])
    assert (result["reason"], refused.returncode) == ("UnknownPatchState", 3)
    assert str(cached) in result["message"]
    assert "Delete it" in result["message"]
    refused = call("apply", "--json", *words)
    assert refused.returncode == 4, refused.stdout
    assert "bytecode that is not of" in json.loads(refused.stdout.splitlines()[-1])["message"]

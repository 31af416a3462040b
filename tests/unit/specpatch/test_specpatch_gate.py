"""The import check proves what the server will load, and its failures name the cause."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import mini_sglang
import pytest

from sglang_specpatch import __main__ as program
from sglang_specpatch import runtime_files
from sglang_specpatch.claims import Claims
from sglang_specpatch.gate import prove
from sglang_specpatch.names import MANIFEST
from sglang_specpatch.result import Refusal

Apply = Callable[..., dict[str, str]]


BOTH_LAYOUTS = pytest.mark.parametrize("package", ["old", "new"], indirect=True)


@pytest.fixture
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = mini_sglang.write(tmp_path / "site", mini_sglang.LAYOUTS[getattr(request, "param", "old")])
    monkeypatch.setenv("PYTHONPATH", str(made.parent))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def apply(package: Path, out: Path, tmp_path: Path) -> Apply:
    def run(*options: str) -> dict[str, str]:
        log = tmp_path / "termination-log"
        program.main(["apply", "--to", str(out), "--termination-log", str(log), *options])
        result: dict[str, str] = json.loads(log.read_text())
        return result

    return run


def _edit(place: Path, old: str, new: str) -> None:
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new))


@BOTH_LAYOUTS
def test_a_patched_tree_is_proven(apply: Apply, capsys: pytest.CaptureFixture[str]) -> None:
    assert apply()["result"] == "Patched"
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.endswith("OK")] == [
        "server_args OK",
        "flag OK",
        "worker hook OK",
        "live update OK",
    ]


@pytest.mark.parametrize("package", ["plain"], indirect=True)
def test_a_release_whose_worker_cannot_be_switched_is_proven_to_refuse(
    apply: Apply, capsys: pytest.CaptureFixture[str]
) -> None:
    assert apply()["result"] == "Patched"
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.endswith("OK")] == ["server_args OK", "flag OK", "live update refused OK"]


PLANTED_WITHOUT_A_SWITCH = {
    "the scheduler takes an update": ("hooks.py", "    return problem is None\n", "    return True\n", "a live update"),
    "the route lets an update through": ("requests.py", "if problem is not None:", "if False:", "is passed on as"),
    "the read-back claims activity": (
        "hooks.py",
        '"active": patch is not None',
        '"active": True',
        "generation and activity",
    ),
}


@pytest.mark.parametrize("package", ["plain"], indirect=True)
@pytest.mark.parametrize("planted", PLANTED_WITHOUT_A_SWITCH)
def test_an_error_planted_where_nothing_can_be_switched_fails_the_check(
    planted: str, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(monkeypatch, *PLANTED_WITHOUT_A_SWITCH[planted][:3])
    result = apply()
    assert (result["result"], result["reason"]) == ("CheckFailed", "ImportCheckFailed")
    assert PLANTED_WITHOUT_A_SWITCH[planted][3] in result["message"]


def _plant(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    files = runtime_files.read()
    assert old.encode() in files[name]
    files[name] = files[name].replace(old.encode(), new.encode())
    monkeypatch.setattr(runtime_files, "read", lambda: files)


PLANTED = {
    "the threshold off by one": (
        "probing.py",
        "0 < threshold <= batch_size",
        "0 < threshold < batch_size",
        "draft steps",
    ),
    "zero stops drafting": (
        "probing.py",
        "0 < threshold <= batch_size",
        "threshold <= batch_size",
        "threshold 0, batch 1",
    ),
    "booleans accepted": ("settings.py", "type(value) is not int", "not isinstance(value, int)", "a live update"),
    "a bad flag value accepted": (
        "settings.py",
        "plain = text.isascii()",
        "plain = True or text.isascii()",
        "=-1 is not refused",
    ),
    "a bad update accepted": ("hooks.py", "return settings.update_refusal(updates)", "return None", "a live update"),
    "a request not checked": (
        "requests.py",
        "_refuse(settings.update_refusal(await _updates(request)))",
        "await _updates(request)",
        "is passed on as",
    ),
    "a hook gone": (
        "__init__.py",
        "    attach,\n",
        "",
        "has no attach, which srt/speculative/eagle_worker_v2.py calls",
    ),
    "a share of probes too high accepted": (
        "settings.py",
        "MAX_PROBE_PERMILLE = 500",
        "MAX_PROBE_PERMILLE = 1000",
        "--speculative-probe-permille=501 is not refused",
    ),
    "any word accepted": (
        "settings.py",
        "if text not in words:",
        "if False:",
        "--speculative-off-path=sometimes is not refused",
    ),
    "one of two keys not checked": (
        "settings.py",
        "for name in LIVE if name in updates)",
        "for name in LIVE[:1] if name in updates)",
        "a live update",
    ),
    "another generation reported": (
        "engine.py",
        'content.get("generation")',
        '1 + content.get("generation")',
        "the server would report generation and release",
    ),
    "the read-back denies activity": (
        "hooks.py",
        '"active": patch is not None',
        '"active": False',
        "the server would say that generation and activity",
    ),
    "the share of probes without effect": (
        "probing.py",
        "if not permille:",
        "if True:",
        "threshold 1, batch 8, 500 permille: 0 of 200 steps are probes.",
    ),
    "probes without being asked for": (
        "threshold.py",
        "threshold, self._read_permille(), batch_size",
        "threshold, 30, batch_size",
        "0 permille",
    ),
    "the share of probes not read back": (
        "hooks.py",
        "        state[settings.PROBE_PERMILLE] = patch.policy.probe_permille\n",
        "",
        "the server would not say what is in force of speculative_probe_permille.",
    ),
}


@BOTH_LAYOUTS
@pytest.mark.parametrize("planted", PLANTED)
def test_an_error_planted_in_the_runtime_fails_the_check(
    planted: str, apply: Apply, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, old, new, words = PLANTED[planted]
    _plant(monkeypatch, name, old, new)
    result = apply()
    assert (result["result"], result["reason"]) == ("CheckFailed", "ImportCheckFailed")
    assert words in result["message"]
    assert not (out / "sglang").exists(), "a tree that failed its check must not be put in place"


def test_a_failed_check_keeps_the_tree_that_was_in_place(apply: Apply, out: Path, package: Path) -> None:
    apply()
    before = (out / MANIFEST).read_bytes()
    _edit(package / "__init__.py", '"""SGLang, in small."""', "import no_such_package")
    result = apply()
    assert (result["reason"], result["result"]) == ("PackageMismatch", "CheckFailed")
    assert "no_such_package" in result["message"]
    assert (out / MANIFEST).read_bytes() == before
    assert sorted(place.name for place in out.iterdir()) == [".specpatch-lock", "sglang", MANIFEST]


def test_the_message_holds_the_cause_and_the_last_lines_of_the_log(apply: Apply, package: Path) -> None:
    lines = "\n".join(f"print('line {number}')" for number in range(100))
    _edit(
        package / "__init__.py",
        '"""SGLang, in small."""',
        f"{lines}\nraise ImportError('libnuma.so.1: cannot open shared object file: No such file or directory')",
    )
    result = apply()
    assert result["reason"] == "MissingSystemLibrary"
    first, *tail = result["message"].splitlines()
    assert "libnuma.so.1 is missing" in first
    assert len(tail) == 20
    assert "line 99" in tail
    assert "line 70" not in tail


def test_an_unrecognised_failure_shows_its_last_line(apply: Apply, package: Path) -> None:
    _edit(package / "__init__.py", '"""SGLang, in small."""', "raise RuntimeError('odd')")
    result = apply()
    assert result["reason"] == "ImportCheckFailed"
    assert "importing SGLang failed: RuntimeError: odd" in result["message"]


def test_the_exception_that_was_raised_first_is_the_cause(apply: Apply, package: Path) -> None:
    """What was logged and handled before is not; what is printed last is not either."""
    _edit(
        package / "__init__.py",
        '"""SGLang, in small."""',
        """
import traceback
try:
    raise ImportError("libharmless.so.1: cannot open shared object file: No such file or directory")
except ImportError:
    traceback.print_exc()
try:
    raise RuntimeError("operator torchvision::nms does not exist")
except RuntimeError:
    raise ImportError("could not load common_ops: libother.so.1: cannot open shared object file")
""",
    )
    result = apply()
    assert result["reason"] == "TorchABIMismatch"
    assert "torchvision" in result["message"]


def test_whatever_the_import_started_ends_with_it(apply: Apply, package: Path) -> None:
    _edit(
        package / "__init__.py",
        '"""SGLang, in small."""',
        "import subprocess, time; print('helper', subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)",
    )
    message = apply("--check-timeout", "3")["message"]
    assert "did not end in time" in message
    helper = next(line.split()[1] for line in message.splitlines() if line.startswith("helper"))
    status, deadline = Path("/proc", helper, "status"), time.monotonic() + 10
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < deadline, "the helper lives on"
        time.sleep(0.05)


def test_a_check_that_hangs_is_stopped(apply: Apply, package: Path) -> None:
    _edit(package / "__init__.py", '"""SGLang, in small."""', "import time; time.sleep(600)")
    assert "did not end in time" in apply("--check-timeout", "1")["message"]


@pytest.mark.parametrize(("signal", "words"), [(9, "lack of memory"), (11, "died of signal 11")])
def test_an_interpreter_that_dies_is_named(signal: int, words: str, apply: Apply, package: Path) -> None:
    _edit(package / "__init__.py", '"""SGLang, in small."""', f"import os; os.kill(os.getpid(), {signal})")
    result = apply()
    assert result["reason"] == "ImportCheckFailed"
    assert words in result["message"]


def test_a_folder_in_the_working_directory_that_comes_first_fails_the_check(
    apply: Apply, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert apply()["result"] == "Patched"
    mini_sglang.write(tmp_path / "work", mini_sglang.OLD_LAYOUT)
    assert program.main(["run", "--tree", str(out), "--", "true"]) == 3
    assert "something comes before PYTHONPATH" in capsys.readouterr().out
    assert program.main(["check", "--tree", str(out)]) == 4
    assert "not from the patched tree" in capsys.readouterr().out


def _plant_stale_bytecode(member: Path, old: str, new: str) -> Path:
    """Leave a cache that the import system takes for that of the file: same time, same size."""
    times = (member.stat().st_atime_ns, member.stat().st_mtime_ns)
    good = member.read_text()
    bad = good.replace(old, new)
    assert bad != good
    assert len(bad) == len(good)
    member.write_text(bad)
    os.utime(member, ns=times)
    cached = py_compile.compile(str(member), doraise=True)
    assert cached is not None
    member.write_text(good)
    os.utime(member, ns=times)
    return Path(cached)


def test_stale_bytecode_cannot_win(apply: Apply, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply()
    worker = out / "sglang/srt/speculative/eagle_worker_v2.py"
    cached = _plant_stale_bytecode(worker, "specpatch.attach(self)", "specpatch.detach(self)")
    assert program.main(["check", "--tree", str(out)]) == 4
    assert "bytecode that is not of" in capsys.readouterr().out
    assert apply()["result"] == "Patched"
    assert not cached.exists()


def test_stale_bytecode_under_a_cache_prefix_cannot_win(
    apply: Apply, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply()
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    worker = out / "sglang/srt/speculative/eagle_worker_v2.py"
    cached = _plant_stale_bytecode(worker, "specpatch.attach(self)", "specpatch.detach(self)")
    assert cached.is_relative_to(tmp_path / "cache")
    assert apply()["result"] == "Patched"
    assert not cached.exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: (out / MANIFEST).unlink(), "no readable manifest"),
        (lambda out: (out / "sglang/srt/data.json").unlink(), "srt/data.json is missing"),
        (lambda out: (out / "sglang/srt/data.json").write_text("[]"), "srt/data.json was changed"),
        (lambda out: (out / "sglang/x.py").write_text(""), "x.py is not part of the patch"),
        (
            lambda out: _edit(out / MANIFEST, '"generation": 2', '"generation": 7'),
            "generation 7, this program is generation 2",
        ),
    ],
)
def test_only_a_verified_tree_is_run(
    damage: Callable[[Path], object], words: str, apply: Apply, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply()
    damage(out)
    assert program.main(["run", "--tree", str(out), "--", "true"]) == 3
    assert words in capsys.readouterr().out


def _run(out: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    operator = Path(program.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{operator}{os.pathsep}{os.environ['PYTHONPATH']}"} | variables
    arguments = [sys.executable, "-m", "sglang_specpatch", "run", "--tree", str(out), "--", *command]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_server_loads_the_patched_tree_and_keeps_its_path(apply: Apply, out: Path, package: Path) -> None:
    apply()
    served = _run(out, sys.executable, "-m", "sglang.launch_server")
    assert served.returncode == 0, served.stdout + served.stderr
    assert served.stdout.splitlines() == [
        f"SGLang 0.5.16 patched, generation 2, from {out}",
        f"serving from {out}/sglang/srt/server_args.py",
    ]
    shown = _run(out, sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])").stdout.splitlines()[-1]
    operator = Path(program.__file__).parents[1]
    assert shown.split(os.pathsep) == [str(out), str(operator), str(package.parent)]


def test_the_exit_code_of_the_server_is_kept(apply: Apply, out: Path) -> None:
    apply()
    assert _run(out, sys.executable, "-c", "raise SystemExit(37)").returncode == 37


def test_a_command_that_does_not_exist_is_refused(apply: Apply, out: Path) -> None:
    apply()
    done = _run(out, "no-such-program")
    assert done.returncode == 3
    assert "no-such-program can't be started" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_tree_patched_without_the_check_warns_when_run(apply: Apply, out: Path) -> None:
    apply("--no-import-check")
    assert "without the import check" in _run(out, sys.executable, "-c", "").stdout


def test_a_refusal_is_raised_with_its_release(package: Path, tmp_path: Path) -> None:
    claims = Claims(2, "0.5.16", [], True, [])
    with pytest.raises(Refusal) as caught:
        prove(tmp_path, claims, dict(os.environ), say=lambda _: None, timeout_seconds=30)
    assert caught.value.release == "0.5.16"

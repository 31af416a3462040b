"""A patched tree is complete or not there at all, whatever interrupts the patcher; a second run changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import mini_sglang
import pytest

from sglang_specpatch import __main__ as program
from sglang_specpatch import archive, disk, runtime_files, tree
from sglang_specpatch.locate import Found
from sglang_specpatch.manifest import Manifest
from sglang_specpatch.names import LOCK, MANIFEST
from sglang_specpatch.result import Reason, Refusal


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    few = {name: data for name, data in runtime_files.read().items() if name in ("__init__.py", "hooks.py")}
    monkeypatch.setattr(runtime_files, "read", lambda: few)
    return Found(mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT), "0.5.16")


def _apply(source: Found, target: Path) -> dict[str, str]:
    with tree.locked(target):
        blueprint = tree.draw(source, import_check="skipped")
        states = tree.states(blueprint, target)
        if not tree.is_in_place(blueprint, target):
            tree.build(blueprint, target)
            tree.commit(blueprint, target)
    return states


def _content(folder: Path) -> dict[str, bytes]:
    return {
        place.relative_to(folder).as_posix(): place.read_bytes()
        for place in folder.rglob("*")
        if place.is_file() and "__pycache__" not in place.parts
    }


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    places = [place for place in folder.rglob("*") if place.is_file() and not place.name.endswith("-lock")]
    return {str(place): (place.stat().st_ino, place.stat().st_mtime_ns) for place in places}


def test_the_copy_is_complete_and_the_source_untouched(source: Found, tmp_path: Path) -> None:
    before = _content(source.package)
    states = _apply(source, tmp_path / "out")
    after = _content(tmp_path / "out/sglang")
    assert _content(source.package) == before
    assert set(states.values()) == {"applied"}
    assert {path for path in before if after[path] != before[path]} == set(states) & set(before)
    assert set(after) - set(before) == {path for path in states if path.startswith("srt/speculative/specpatch/")}
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == [".specpatch-lock", "sglang", MANIFEST]


def test_a_second_run_changes_nothing(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    stamps = _stamps(tmp_path / "out")
    states = _apply(source, tmp_path / "out")
    assert set(states.values()) == {"already there"}
    assert _stamps(tmp_path / "out") == stamps


def test_two_clean_runs_are_byte_identical(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "one")
    _apply(source, tmp_path / "two")
    assert _content(tmp_path / "one") == _content(tmp_path / "two")


@pytest.mark.parametrize("damage", ["restored", "truncated", "deleted"])
def test_any_member_that_was_changed_is_healed(damage: str, source: Found, tmp_path: Path) -> None:
    clean = _apply(source, tmp_path / "out")
    expected = _content(tmp_path / "out")
    for path in clean:
        place = tmp_path / "out/sglang" / path
        original = source.package / path
        if damage == "deleted":
            place.unlink()
        elif damage == "truncated":
            place.write_bytes(place.read_bytes()[:20])
        else:
            place.write_bytes(original.read_bytes() if original.exists() else b"# of another generation\n")
        states = _apply(source, tmp_path / "out")
        assert {changed for changed, state in states.items() if state == "healed"} == {path}
        assert _content(tmp_path / "out") == expected


def test_a_copied_file_that_was_changed_or_added_is_healed(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    expected = _content(tmp_path / "out")
    (tmp_path / "out/sglang/srt/data.json").write_text("{}")
    (tmp_path / "out/sglang/srt/stray.py").write_text("")
    _apply(source, tmp_path / "out")
    assert _content(tmp_path / "out") == expected


def test_a_changed_source_is_patched_anew(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    (source.package / "srt/data.json").write_text("[]")
    _apply(source, tmp_path / "out")
    assert (tmp_path / "out/sglang/srt/data.json").read_text() == "[]"


def test_an_older_generation_is_replaced_from_the_source(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    expected = _content(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "out" / MANIFEST).write_text(json.dumps({**manifest, "generation": 0}))
    (tmp_path / "out/sglang/srt/speculative/specpatch/hooks.py").write_text("# generation 0\n")
    _apply(source, tmp_path / "out")
    assert _content(tmp_path / "out") == expected


def test_an_sglang_of_someone_else_is_left_alone(source: Found, tmp_path: Path) -> None:
    theirs = tmp_path / "out/sglang/__init__.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("# mine\n")
    with pytest.raises(Refusal) as caught:
        _apply(source, tmp_path / "out")
    assert caught.value.reason is Reason.UNKNOWN_PATCH_STATE
    assert theirs.read_text() == "# mine\n"


def test_behind_a_patched_copy_the_tree_is_taken_that_it_was_made_from(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    _apply(Found(tmp_path / "out/sglang", "0.5.16"), tmp_path / "again")
    assert _content(tmp_path / "again") == _content(tmp_path / "out")


def test_a_patched_copy_whose_source_is_gone_is_refused_as_a_source(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    shutil.rmtree(source.package)
    with pytest.raises(Refusal) as caught:
        _apply(Found(tmp_path / "out/sglang", "0.5.16"), tmp_path / "again")
    assert caught.value.reason is Reason.UNKNOWN_PATCH_STATE
    assert "reinstall sglang there, or take the patched folder off PYTHONPATH" in caught.value.message


def test_hooks_without_a_manifest_are_refused_as_a_source(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    (tmp_path / "out" / MANIFEST).unlink()
    with pytest.raises(Refusal) as caught:
        _apply(Found(tmp_path / "out/sglang", "0.5.16"), tmp_path / "again")
    assert caught.value.reason is Reason.UNKNOWN_PATCH_STATE
    assert f"no {MANIFEST} beside it" in caught.value.message


def test_a_refused_source_leaves_nothing_behind(source: Found, tmp_path: Path) -> None:
    worker = source.package / "srt/speculative/eagle_worker_v2.py"
    worker.write_text(worker.read_text().replace("self.speculative_num_steps == 0", "self.off"))
    before = _content(source.package)
    with pytest.raises(Refusal) as caught:
        _apply(source, tmp_path / "out")
    assert caught.value.reason is Reason.UNSUPPORTED_SOURCE
    assert caught.value.path == str(source.package)
    assert _content(source.package) == before
    assert [place.name for place in (tmp_path / "out").iterdir()] == [".specpatch-lock"]


def test_bytecode_is_neither_copied_nor_part_of_the_digest(source: Found, tmp_path: Path) -> None:
    cache = source.package / "srt/__pycache__"
    cache.mkdir()
    (cache / "server_args.cpython-311.pyc").write_bytes(b"stale")
    _apply(source, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.pyc"))
    (tmp_path / "out/sglang/srt/__pycache__").mkdir()
    (tmp_path / "out/sglang/srt/__pycache__/x.pyc").write_bytes(b"of a running server")
    assert set(_apply(source, tmp_path / "out").values()) == {"already there"}


def test_links_are_copied_as_files(source: Found, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("a = 1\n")
    (source.package / "linked").symlink_to(outside, target_is_directory=True)
    (source.package / "loop").symlink_to(source.package, target_is_directory=True)
    (source.package / "dangling.py").symlink_to(tmp_path / "nowhere")
    _apply(source, tmp_path / "out")
    shutil.rmtree(outside)
    assert (tmp_path / "out/sglang/linked/a.py").read_text() == "a = 1\n"
    assert not any(place.is_symlink() for place in (tmp_path / "out").rglob("*"))


def test_too_little_space_is_refused_before_anything_is_written(
    source: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(Refusal) as caught:
        _apply(source, tmp_path / "out")
    assert caught.value.reason is Reason.NO_SPACE
    assert "1 MiB free" in caught.value.message


@pytest.mark.parametrize(
    ("number", "reason"),
    [(28, Reason.NO_SPACE), (122, Reason.NO_SPACE), (30, Reason.SOURCE_NOT_WRITABLE), (13, Reason.SOURCE_NOT_WRITABLE)],
)
def test_a_disk_error_in_the_middle_is_a_refusal(
    number: int, reason: Reason, source: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(destination: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number), str(destination))

    monkeypatch.setattr(tree, "write_file", fail)
    with pytest.raises(Refusal) as caught:
        _apply(source, tmp_path / "out")
    assert caught.value.reason is reason
    assert not (tmp_path / "out/sglang").exists()


def test_a_target_below_a_file_is_not_writable(source: Found, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal) as caught:
        _apply(source, tmp_path / "file/out")
    assert caught.value.reason is Reason.SOURCE_NOT_WRITABLE


KILLER = """
import os, shutil, signal, sys
from pathlib import Path
import mini_sglang
from sglang_specpatch import runtime_files, tree
from sglang_specpatch.locate import Found

few = {name: data for name, data in runtime_files.read().items() if name in ("__init__.py", "hooks.py")}
runtime_files.read = lambda: few
moment, occupied, folder = sys.argv[1], sys.argv[2] == "occupied", Path(sys.argv[3])
source = Found(mini_sglang.write(folder / "site", mini_sglang.OLD_LAYOUT), "0.5.16")
countdown = 0

def apply(out):
    with tree.locked(out):
        blueprint = tree.draw(source, import_check="skipped")
        if not tree.is_in_place(blueprint, out):
            tree.build(blueprint, out)
            tree.commit(blueprint, out)

def content(out):
    return {place.relative_to(out): place.read_bytes() for place in out.rglob("*") if place.is_file()}

def half_file(first, second):
    place, data = (first, second) if isinstance(second, bytes) else (second, first.read_bytes())
    place.write_bytes(data[: len(data) // 2])

def half_scratch(scratch, *_):
    os.truncate(scratch, os.path.getsize(scratch) // 2)

def dying(real, partial=None):
    def step(*arguments, **options):
        global countdown
        countdown -= 1
        if countdown == 0:
            if moment == "half":
                partial(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return step

def die_at(write, out):
    global countdown
    countdown = write
    tree.write_file, tree.copy_file = dying(tree.write_file, half_file), dying(tree.copy_file, half_file)
    os.replace = dying(os.replace, half_scratch)
    if moment == "before":
        os.rename, os.unlink = dying(os.rename), dying(os.unlink)
    apply(out)
    os._exit(0)

apply(folder / "clean")
clean, write, status = content(folder / "clean"), 0, None
while status != 0:
    write, out = write + 1, folder / "out"
    if occupied:
        (source.package / "srt/data.json").write_text("[]")
        apply(out)
        (source.package / "srt/data.json").write_text(mini_sglang.COMMON["srt/data.json"])
    child = os.fork()
    if child == 0:
        die_at(write, out)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    apply(out)
    assert content(out) == clean, f"killed {moment} write {write}"
    shutil.rmtree(out)
print(write - 1, len(clean))
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("target", ["empty", "occupied"])
@pytest.mark.parametrize("moment", ["before", "half"])
def test_a_patcher_killed_at_any_write_is_healed_by_the_next(moment: str, target: str, tmp_path: Path) -> None:
    places = [Path(tree.__file__).parents[1], Path(mini_sglang.__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-c", KILLER, moment, target, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    kills, files = map(int, done.stdout.split())
    # Every file of the tree, the manifest in staging and in place, the tree's own rename.
    assert kills >= files


@pytest.mark.parametrize("form", ["copy", "in place"])
def test_two_patchers_at_once_wait_for_each_other(form: str, tmp_path: Path) -> None:
    package = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    (tmp_path / "specpatch.pyz").write_bytes(archive.build())
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    words = ["--in-place"] if form == "in place" else ["--to", str(tmp_path / "out")]
    command = [sys.executable, str(tmp_path / "specpatch.pyz"), "apply", "--no-import-check", *words]
    running = [
        subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    logs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], logs
    assert sum("put in place" in log for log in logs) == 1
    assert sum("already in place" in log for log in logs) == 2


def test_a_lock_whose_file_was_removed_meanwhile_holds_nobody(tmp_path: Path) -> None:
    """`undo` removes the lock's file; whoever waited for it must not share the place with a newcomer."""
    waiting, entered, leave = threading.Event(), threading.Event(), threading.Event()

    def wait_for_it() -> None:
        waiting.set()
        with disk.locked(tmp_path):
            entered.set()
            leave.wait(30)

    with disk.locked(tmp_path):
        second = threading.Thread(target=wait_for_it)
        second.start()
        assert waiting.wait(30)
        (tmp_path / LOCK).unlink()
    assert entered.wait(30)
    with (tmp_path / LOCK).open("rb") as newcomer, pytest.raises(BlockingIOError):
        fcntl.flock(newcomer, fcntl.LOCK_EX | fcntl.LOCK_NB)
    leave.set()
    second.join(30)


def test_the_command_line_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = mini_sglang.write(tmp_path / "site", mini_sglang.NEW_LAYOUT)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    log = tmp_path / "termination-log"
    arguments = ["apply", "--to", str(tmp_path / "out"), "--termination-log", str(log), "--json"]
    assert program.main(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"SGLang 0.5.16 in {package}"
    assert "server_args OK" in said
    assert "  applied: sglang/srt/speculative/eagle_worker_v2.py" in said
    assert json.loads(said[-1]) == json.loads(log.read_text())
    assert json.loads(log.read_text())["path"] == str(package)
    assert program.main([*arguments, "--no-import-check"]) == 0
    assert "The import check was skipped." not in capsys.readouterr().out, "it was proven before and has not changed"
    assert program.main(["check", "--tree", str(tmp_path / "out")]) == 0
    assert program.main(["apply", "--to", str(package), "--termination-log", str(log)]) == 5
    assert json.loads(log.read_text())["reason"] == "SourceNotWritable"
    assert textwrap.shorten(json.loads(log.read_text())["message"], 2000).endswith("empty directory of another place.")


def test_undo_removes_a_copy_and_keeps_the_directory(source: Found, tmp_path: Path) -> None:
    before = _content(source.package)
    _apply(source, tmp_path / "out")
    with tree.locked(tmp_path / "out"):
        manifest = tree.remove(tmp_path / "out")
    assert manifest is not None
    assert manifest.release == "0.5.16"
    assert list((tmp_path / "out").iterdir()) == []
    assert _content(source.package) == before
    with tree.locked(tmp_path / "out"):
        assert tree.remove(tmp_path / "out") is None
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "named"),
    [("srt/data.json", "srt/data.json was changed"), ("srt/mine.py", "srt/mine.py is not part of the patch")],
)
def test_undo_of_a_copy_that_somebody_edited_is_refused_by_name(
    path: str, named: str, source: Found, tmp_path: Path
) -> None:
    _apply(source, tmp_path / "out")
    (tmp_path / "out/sglang" / path).write_text("# mine\n")
    with tree.locked(tmp_path / "out"), pytest.raises(Refusal) as caught:
        tree.remove(tmp_path / "out")
    assert caught.value.reason is Reason.UNKNOWN_PATCH_STATE
    assert named in caught.value.message
    assert (tmp_path / "out/sglang" / path).read_text() == "# mine\n"


def test_undo_removes_a_copy_of_an_older_generation(source: Found, tmp_path: Path) -> None:
    _apply(source, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "out" / MANIFEST).write_text(json.dumps({**manifest, "generation": 1}))
    with tree.locked(tmp_path / "out"):
        tree.remove(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_undo_does_not_touch_an_sglang_of_someone_else(source: Found) -> None:
    with tree.locked(source.package.parent), pytest.raises(Refusal) as caught:
        tree.remove(source.package.parent)
    assert caught.value.reason is Reason.UNKNOWN_PATCH_STATE
    assert (source.package / "__init__.py").exists()


@pytest.mark.parametrize("killed_at", ["rename", "unlink", "rmtree"])
def test_an_undo_of_a_copy_that_died_is_finished_by_the_next(
    killed_at: str, source: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        """As a kill: nothing of the program handles it."""

    def die(*_: object, **__: object) -> None:
        raise Died

    _apply(source, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(shutil if killed_at == "rmtree" else Path, killed_at, die)
        with pytest.raises(Died), tree.locked(tmp_path / "out"):
            tree.remove(tmp_path / "out")
    with tree.locked(tmp_path / "out"):
        tree.remove(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_tree_that_a_lower_image_layer_holds_is_replaced(
    source: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an overlay, a folder of a lower layer can't be renamed."""
    _apply(source, tmp_path / "out")
    (source.package / "srt/data.json").write_text("[]")
    rename = Path.rename

    def refuse(place: Path, target: Path) -> Path:
        if place == tmp_path / "out/sglang":
            raise OSError(18, os.strerror(18), str(place))
        return rename(place, target)

    monkeypatch.setattr(Path, "rename", refuse)
    _apply(source, tmp_path / "out")
    assert (tmp_path / "out/sglang/srt/data.json").read_text() == "[]"
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == [".specpatch-lock", "sglang", MANIFEST]


def test_a_source_that_this_user_cannot_read_is_named(
    source: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", str(source.package / "srt"))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Refusal) as caught:
        tree.draw(source, import_check="skipped")
    assert caught.value.reason is Reason.SOURCE_NOT_FOUND
    assert "can't be read by user" in caught.value.message


def test_a_tree_that_was_not_proven_is_sealed_by_a_later_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = mini_sglang.write(tmp_path / "site", mini_sglang.OLD_LAYOUT)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    arguments = ["apply", "--to", str(tmp_path / "out")]
    assert program.main([*arguments, "--no-import-check"]) == 0
    assert "The import check was skipped." in capsys.readouterr().out
    stamps = _stamps(tmp_path / "out/sglang")
    assert program.main(arguments) == 0
    manifest = Manifest.read(tmp_path / "out")
    assert manifest is not None
    assert manifest.import_check == "passed"
    after = _stamps(tmp_path / "out/sglang")
    assert {place: after[place] for place in stamps} == stamps

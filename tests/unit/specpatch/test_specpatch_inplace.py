"""Patched in place, an installation can be taken back byte for byte, whatever happens in between."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mini_sglang
import pytest
from installed_sglang import RECORD, WORKER, content, everything

from sglang_specpatch import __main__ as program
from sglang_specpatch import disk, gate, inplace, tree
from sglang_specpatch.locate import Found
from sglang_specpatch.names import GENERATION, MANIFEST, ORIGINALS, RUNTIME_DIRECTORY
from sglang_specpatch.originals import Journal
from sglang_specpatch.result import Reason

Run = Callable[..., dict[str, str]]


def test_undo_restores_every_byte_mode_time_and_cache(site: Path, run: Run) -> None:
    before = everything(site)
    applied = run("apply", "--in-place")
    assert (applied["result"], applied["code"], applied["path"]) == ("Patched", "0", str(site / "sglang"))
    assert everything(site) != before
    assert run("check")["result"] == "Patched"
    undone = run("undo", "--in-place")
    assert (undone["result"], undone["reason"], undone["code"]) == ("Undone", "Undone", "0")
    assert everything(site) == before
    assert "not patched: nothing to undo" in run("undo", "--in-place")["message"]
    assert everything(site) == before


def test_a_second_run_changes_nothing(site: Path, run: Run) -> None:
    run("apply", "--in-place")
    before = everything(site)
    again = run("apply", "--in-place")
    assert "already in place" in again["message"]
    assert everything(site) == before


def test_patched_files_keep_their_modes_and_added_ones_get_those_of_the_package(old_site: Path, patch: Run) -> None:
    (old_site / WORKER).chmod(0o640)
    (old_site / "sglang/__init__.py").chmod(0o664)
    patch()
    assert (old_site / WORKER).stat().st_mode & 0o7777 == 0o640
    assert (old_site / "sglang" / RUNTIME_DIRECTORY / "hooks.py").stat().st_mode & 0o7777 == 0o664


def test_the_serving_process_finds_the_manifest(site: Path, run: Run) -> None:
    run("apply", "--in-place")
    code = (
        "import json; from sglang.srt.speculative.specpatch import engine; print(json.dumps(engine.patch_identity()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(said.stdout) == [GENERATION, "0.5.16"]


def test_run_starts_a_server_on_it_without_touching_the_path(site: Path, run: Run) -> None:
    run("apply", "--in-place")
    operator = str(Path(program.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), operator])}
    command = [sys.executable, "-m", "sglang_specpatch", "run", "--", sys.executable, "-m", "sglang.launch_server"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == [
        f"SGLang 0.5.16 patched, generation {GENERATION}, from {site}",
        f"serving from {site}/sglang/srt/server_args.py",
    ], done.stderr


def test_the_log_says_file_by_file_what_happened(
    old_site: Path, patch: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for _ in range(2):
        program.main(["apply", "--in-place", "--no-import-check"])
        said.append([line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")])
        (old_site / WORKER).unlink()
    assert f"applied: {WORKER}" in said[0]
    assert f"applied: {RECORD}" in said[0]
    assert f"healed: {WORKER}" in said[1]
    assert "already there: sglang/srt/server_args.py" in said[1]


@pytest.mark.parametrize("damage", ["restored", "deleted"])
def test_any_file_put_back_or_deleted_by_hand_is_healed(damage: str, old_site: Path, patch: Run) -> None:
    originals = content(old_site)
    patch()
    clean = content(old_site)
    journal = Journal.read(old_site)
    assert journal is not None
    for path in journal.changes:
        if damage == "restored" and path in originals:
            data = originals[path][1]
            assert isinstance(data, bytes)
            (old_site / path).write_bytes(data)
        else:
            (old_site / path).unlink()
        assert patch()["result"] == "Patched"
        assert content(old_site) == clean, path
    assert content(old_site) == clean


def test_a_file_that_somebody_edited_is_refused_by_name_and_nothing_is_lost(
    old_site: Path, patch: Run, run: Run, tmp_path: Path
) -> None:
    patch()
    edited = (old_site / WORKER).read_text() + "# a fix of ours\n"
    (old_site / WORKER).write_text(edited)
    before = content(old_site)
    for arguments in (
        ("apply", "--in-place", "--no-import-check"),
        ("apply", "--to", str(tmp_path / "out"), "--no-import-check"),
        ("undo", "--in-place"),
        ("show",),
    ):
        refused = run(*arguments)
        assert (refused["reason"], refused["code"]) == ("UnknownPatchState", "3"), arguments
        assert WORKER in refused["message"]
        assert content(old_site) == before
    assert run("check")["reason"] == "UnknownPatchState"


def test_a_file_added_to_the_patch_by_somebody_keeps_it_from_being_removed(
    old_site: Path, patch: Run, run: Run
) -> None:
    patch()
    mine = old_site / "sglang" / RUNTIME_DIRECTORY / "mine.py"
    mine.write_text("mine = 1\n")
    before = content(old_site)
    refused = run("undo", "--in-place")
    assert refused["reason"] == "UnknownPatchState"
    assert "mine.py" in refused["message"]
    assert content(old_site) == before


def test_an_original_that_is_gone_is_refused_by_name(old_site: Path, patch: Run, run: Run) -> None:
    patch()
    (old_site / ORIGINALS / "files" / WORKER).unlink()
    before = content(old_site)
    for arguments in (("undo", "--in-place"), ("apply", "--in-place", "--no-import-check")):
        refused = run(*arguments)
        assert refused["reason"] == "UnknownPatchState"
        assert f"{ORIGINALS}/files/{WORKER}" in refused["message"]
        assert content(old_site) == before


@pytest.mark.parametrize("damage", [lambda place: place.unlink(), lambda place: place.write_text("{")])
def test_originals_without_a_journal_are_refused(
    damage: Callable[[Path], object], old_site: Path, patch: Run, run: Run
) -> None:
    patch()
    damage(old_site / ORIGINALS / "journal.json")
    before = content(old_site)
    assert run("undo", "--in-place")["reason"] == "UnknownPatchState"
    assert patch()["reason"] == "UnknownPatchState"
    assert content(old_site) == before


def test_a_change_elsewhere_in_the_package_is_no_hindrance(old_site: Path, patch: Run, run: Run) -> None:
    before = content(old_site)
    patch()
    (old_site / "sglang/srt/data.json").write_text("[]")
    assert "srt/data.json was changed" in run("check", "--check-timeout", "60")["message"]
    assert patch()["result"] == "Patched"
    assert run("undo", "--in-place")["result"] == "Undone"
    after = content(old_site)
    assert {path for path in after if after[path] != before.get(path)} == {"sglang/srt/data.json"}
    assert set(after) == set(before)


def test_a_failed_check_restores_the_originals(site: Path, run: Run) -> None:
    (site / "sglang/__init__.py").write_text("import no_such_package\n")
    before = everything(site)
    failed = run("apply", "--in-place")
    assert (failed["result"], failed["reason"], failed["code"]) == ("CheckFailed", "PackageMismatch", "4")
    assert everything(site) == before


def test_an_interrupted_check_restores_the_originals(old_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        assert (old_site / MANIFEST).exists()
        raise KeyboardInterrupt

    before = everything(old_site)
    monkeypatch.setattr(gate, "prove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        program.main(["apply", "--in-place"])
    assert everything(old_site) == before


def test_a_later_failure_of_the_check_leaves_what_was_proven(site: Path, run: Run) -> None:
    run("apply", "--in-place")
    before = content(site)
    (site / "sitecustomize.py").write_text("import sys; sys.modules['argparse'] = None\n")
    assert run("apply", "--in-place")["result"] == "CheckFailed"
    (site / "sitecustomize.py").unlink()
    assert content(site) == before


def test_an_unproven_tree_is_neither_run_nor_trusted(old_site: Path, run: Run, patch: Run) -> None:
    with inplace.locked(old_site):
        blueprint = tree.draw(Found(old_site / "sglang", "0.5.16"), import_check="passed")
        inplace.write(inplace.plan(blueprint, old_site))
    for arguments in (("check",), ("run",)):
        options = ["--", "true"] if arguments == ("run",) else []
        code = program.main([*arguments, *options])
        assert code == 3
    assert "import check did not end" in run("check")["message"]
    assert patch()["result"] == "Patched"


def test_refused_sources_are_left_without_a_trace(old_site: Path, run: Run) -> None:
    (old_site / WORKER).write_text((old_site / WORKER).read_text().replace("self.speculative_num_steps == 0", "self.x"))
    before = everything(old_site)
    refused = run("apply", "--in-place")
    assert refused["reason"] == "UnsupportedSource"
    assert everything(old_site) == before


def test_files_that_are_links_are_refused(old_site: Path, tmp_path: Path, patch: Run) -> None:
    """An installer may link a package out of a cache that other installations share."""
    shared = tmp_path / "cache.py"
    (old_site / WORKER).rename(shared)
    (old_site / WORKER).symlink_to(shared)
    before = shared.read_bytes()
    refused = patch()
    assert refused["reason"] == "UnsupportedSource"
    assert f"is a link to {shared}" in refused["message"]
    assert shared.read_bytes() == before


def test_files_that_share_their_bytes_with_a_cache_leave_the_cache_alone(
    old_site: Path, tmp_path: Path, patch: Run, run: Run
) -> None:
    shared = tmp_path / "cache.py"
    os.link(old_site / WORKER, shared)
    before = shared.read_bytes()
    patch()
    assert shared.read_bytes() == before
    run("undo", "--in-place")
    assert (old_site / WORKER).samefile(shared)


def test_without_links_originals_are_copied(
    old_site: Path, patch: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, os.strerror(95))

    before = everything(old_site)
    monkeypatch.setattr(os, "link", refuse)
    patch()
    assert (old_site / WORKER).stat().st_nlink == 1
    run("undo", "--in-place")
    assert everything(old_site) == before


@pytest.mark.parametrize(("number", "reason"), [(28, Reason.NO_SPACE), (30, Reason.SOURCE_NOT_WRITABLE)])
def test_a_disk_error_in_the_middle_restores_the_originals(
    number: int, reason: Reason, old_site: Path, patch: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(old_site)
    real, calls = disk.replace_file, iter(range(100))

    def fail(*arguments: Path, **options: Path) -> None:
        if next(calls) == 3:
            raise OSError(number, os.strerror(number), "x")
        real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(disk, "replace_file", fail)
    refused = patch()
    assert (refused["reason"], refused["code"]) == (reason.value, "5")
    assert everything(old_site) == before


def test_too_little_space_is_refused_before_anything_is_written(
    old_site: Path, patch: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(old_site)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    before = everything(old_site)
    assert patch()["reason"] == "NoSpace"
    assert everything(old_site) == before


def test_a_copy_made_of_a_patched_installation_is_that_of_the_original(
    old_site: Path, patch: Run, run: Run, tmp_path: Path
) -> None:
    run("apply", "--to", str(tmp_path / "one"), "--no-import-check")
    patch()
    run("apply", "--to", str(tmp_path / "two"), "--no-import-check")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_in_place_does_not_mean_a_copy(
    old_site: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("apply", "--to", str(tmp_path / "out"), "--no-import-check")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "out"), str(old_site)]))
    for command in ("apply", "undo"):
        refused = run(command, "--in-place")
        assert refused["reason"] == "UnknownPatchState"
        assert f"apply --to {tmp_path / 'out'}" in refused["message"]


def test_an_editable_checkout_is_patched_in_place(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "sgl-workspace/sglang/python"
    mini_sglang.write(checkout, mini_sglang.NEW_LAYOUT)
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    monkeypatch.chdir(tmp_path)
    before = everything(checkout)
    assert run("apply", "--in-place")["path"] == str(checkout / "sglang")
    assert (checkout / MANIFEST).exists()
    assert run("check")["result"] == "Patched"
    assert run("undo", "--in-place")["result"] == "Undone"
    assert everything(checkout) == before


def test_the_list_of_installed_files_is_kept_true(old_site: Path, patch: Run) -> None:
    original = (old_site / RECORD).read_text()
    patch()
    rows = {row[0]: row[1:] for row in csv.reader((old_site / RECORD).read_text().splitlines())}
    for path, (digest, size) in rows.items():
        data = (old_site / path).read_bytes()
        if digest:
            name, _, encoded = digest.partition("=")
            actual = base64.urlsafe_b64encode(hashlib.new(name, data).digest()).decode().rstrip("=")
            assert (encoded, size) == (actual, str(len(data))), path
    on_disk = {place.relative_to(old_site).as_posix() for place in old_site.rglob("*") if place.is_file()}
    extra = {"fastapi.py", "sglang/srt/data.json", f"{RECORD.removesuffix('RECORD')}METADATA"}
    assert set(rows) == on_disk - extra
    untouched = [line for line in original.splitlines() if line.split(",")[0] == "sglang/srt/__init__.py"]
    assert untouched[0] in (old_site / RECORD).read_text().splitlines()


def test_windows_line_ends_in_the_list_are_kept(old_site: Path, patch: Run) -> None:
    (old_site / RECORD).write_bytes((old_site / RECORD).read_bytes().replace(b"\n", b"\r\n"))
    patch()
    lines = (old_site / RECORD).read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert all(line.endswith(b"\r") for line in lines)

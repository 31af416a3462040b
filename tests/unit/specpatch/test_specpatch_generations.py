"""A tree patched by another generation: taken back and patched anew, or left alone with a next step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from installed_sglang import apply_quietly, content, everything

from sglang_specpatch import runtime_files
from sglang_specpatch.names import GENERATION, LOCK, ORIGINALS, RUNTIME_DIRECTORY

Run = Callable[..., dict[str, str]]


def _patched_by(generation: int, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch as a program of another generation does, whose added module has other files."""
    other = {"__init__.py": runtime_files.read()["__init__.py"], "gone.py": b"# of that generation\n"}
    with monkeypatch.context() as patch:
        for module in ("tree", "inplace", "originals"):
            patch.setattr(f"sglang_specpatch.{module}.GENERATION", generation)
        patch.setattr(runtime_files, "read", lambda: other)
        apply_quietly(site)
    assert (site / "sglang" / RUNTIME_DIRECTORY / "gone.py").exists()


def test_an_older_generation_is_undone_and_redone(
    old_site: Path, patch: Run, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = everything(old_site)
    apply_quietly(old_site)
    clean = content(old_site)
    run("apply", "--to", str(tmp_path / "one"), "--no-import-check")
    run("undo", "--in-place")
    _patched_by(GENERATION - 1, old_site, monkeypatch)
    assert "generation 1, this program is generation 2" in run("check")["message"]
    run("apply", "--to", str(tmp_path / "two"), "--no-import-check")
    assert content(tmp_path / "two") == content(tmp_path / "one")
    assert patch()["result"] == "Patched"
    assert content(old_site) == clean
    assert run("undo", "--in-place")["result"] == "Undone"
    assert everything(old_site) == before


def test_an_older_generation_is_undone(old_site: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(old_site)
    _patched_by(GENERATION - 1, old_site, monkeypatch)
    assert run("undo", "--in-place")["result"] == "Undone"
    assert everything(old_site) == before


def test_an_older_generation_without_originals_is_refused_with_a_next_step(
    old_site: Path, patch: Run, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _patched_by(GENERATION - 1, old_site, monkeypatch)
    shutil.rmtree(old_site / ORIGINALS)
    (old_site / LOCK).unlink()
    before = content(old_site)
    for arguments in (
        ("apply", "--in-place", "--no-import-check"),
        ("apply", "--to", str(tmp_path / "out"), "--no-import-check"),
    ):
        refused = run(*arguments)
        assert refused["reason"] == "UnknownPatchState"
        assert "patched already (generation 1)" in refused["message"]
        assert "reinstall sglang" in refused["message"]
    assert content(old_site) == before


def test_a_newer_generation_is_left_to_its_program(
    old_site: Path, patch: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _patched_by(GENERATION + 1, old_site, monkeypatch)
    before = content(old_site)
    for refused in (patch(), run("undo", "--in-place")):
        assert refused["reason"] == "UnknownPatchState"
        assert "Use the newer program" in refused["message"]
    assert content(old_site) == before

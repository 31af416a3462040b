"""The parts that real servers on a CPU are made of: edits of SGLang's tree, and the choice of releases."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest
from cpu_engine import plan
from cpu_engine.edits import EDITS, Edit, EditRefused, prepare
from cpu_engine.faults import FAULTS
from real_sglang import RELEASES, REPOSITORY, Workshop

pytestmark = pytest.mark.engine

ABLE = plan.able(RELEASES)
SOURCE = "def before():\n    pass\n\n\ndef here(a, b):\n    return a\n"


def package_with(folder: Path, text: str) -> Path:
    (folder / "file.py").write_text(text)
    return folder


@pytest.mark.parametrize("release", ABLE)
def test_every_release_has_all_the_places(workshop: Workshop, release: str, tmp_path: Path) -> None:
    source, package = workshop.source(release), tmp_path / "sglang"
    edits = (*EDITS, *FAULTS)
    for name in {name for edit in edits for name in edit.files if (source / name).is_file()}:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, package / name)
    shutil.copytree(REPOSITORY / "operator/sglang_specpatch/runtime", package / "srt/speculative/specpatch")
    prepare(package, release, edits)
    for file in package.rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


def test_a_statement_is_put_first_or_behind(tmp_path: Path) -> None:
    package = package_with(tmp_path, SOURCE)
    edits = [Edit(("file.py",), "here", "a = b", ("a", "b")), Edit(("file.py",), "here", "here = None", behind=True)]
    prepare(package, "0.5.16", edits)
    assert (package / "file.py").read_text() == (
        "def before():\n    pass\n\n\ndef here(a, b):\n    a = b\n    return a\nhere = None\n"
    )


@pytest.mark.parametrize("edit", [
    Edit(("file.py",), "nowhere", "pass"),
    Edit(("other.py",), "here", "pass"),
    Edit(("file.py",), "here", "pass", ("b", "a")),
    Edit(("file.py",), "here", "pass", owner="Nobody"),
], ids=["no function", "no file", "other parameters", "no class"])  # fmt: skip
def test_a_tree_that_looks_different_is_refused_and_left_alone(tmp_path: Path, edit: Edit) -> None:
    package = package_with(tmp_path, SOURCE)
    with pytest.raises(EditRefused):
        prepare(package, "0.5.16", [Edit(("file.py",), "before", "return"), edit])
    assert (package / "file.py").read_text() == SOURCE


def test_every_run_takes_the_newest_release_and_all_have_their_turn() -> None:
    start = datetime.date(2026, 1, 5)
    runs = [plan.chosen(RELEASES, "", start + datetime.timedelta(weeks=week)) for week in range(len(ABLE) - 1)]
    assert {run[1] for run in runs} == {ABLE[-1]}
    assert sorted(run[0] for run in runs) == sorted(ABLE[:-1])


def test_releases_can_be_named() -> None:
    day = datetime.date(2026, 1, 5)
    assert plan.chosen(RELEASES, "0.5.16,0.5.20", day) == ["0.5.16", "0.5.20"]
    assert plan.chosen(RELEASES, "all", day) == ABLE
    with pytest.raises(ValueError, match=r"SGLANG_CPU_RELEASES: 0\.5\.6 can't be chosen; there are 0\.5\.14, "):
        plan.chosen(RELEASES, "0.5.16,0.5.6", day)

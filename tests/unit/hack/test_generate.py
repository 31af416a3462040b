"""The registry of generated files: what differs, what is stale, and that checking changes nothing."""

from __future__ import annotations

import pathlib

import pytest

import generate
import reference_pages

MARKED = f"# {generate.MARK} from x; do not edit.\n"


@pytest.fixture
def crds(tmp_path: pathlib.Path) -> pathlib.Path:
    for folder in generate.FOLDERS:
        (tmp_path / folder).mkdir()
    return tmp_path / "crds"


def test_a_changed_file_is_shown_as_a_diff(crds: pathlib.Path) -> None:
    file = crds / "a.yaml"
    file.write_text("a: 1\nb: 2\n")
    [diff] = generate.differences({file: "a: 1\nb: 3\n"}, [], crds.parent)
    assert "-b: 2\n+b: 3\n" in diff
    assert "crds/a.yaml (as it is)" in diff
    assert file.read_text() == "a: 1\nb: 2\n"


def test_a_missing_file_differs_even_from_an_empty_one(crds: pathlib.Path) -> None:
    assert len(list(generate.differences({crds / "a.yaml": "a\n", crds / "b.yaml": ""}, [], crds.parent))) == 2


def test_a_missing_end_of_line_is_a_difference(crds: pathlib.Path) -> None:
    file = crds / "a.yaml"
    file.write_text("a: 1")
    assert list(generate.differences({file: "a: 1\n"}, [], crds.parent)) != []


def test_what_is_up_to_date_is_not_touched(crds: pathlib.Path) -> None:
    file = crds / "a.yaml"
    file.write_text("a\n")
    before = file.stat().st_mtime_ns
    assert list(generate.differences({file: "a\n"}, [], crds.parent)) == []
    assert list(generate.write({file: "a\n"}, [], crds.parent)) == []
    assert file.stat().st_mtime_ns == before


def test_stale_files_are_those_with_the_mark(crds: pathlib.Path) -> None:
    wanted, stale, handmade = crds / "a.yaml", crds / "old.yaml", crds / "mine.yaml"
    wanted.write_text(MARKED)
    stale.write_text(MARKED)
    handmade.write_text("a: 1\n")
    assert generate.stale_files([wanted], crds.parent) == [stale]
    assert list(generate.differences({wanted: MARKED}, [stale], crds.parent)) == [
        "crds/old.yaml: nothing generates this file any more\n"
    ]
    assert list(generate.write({wanted: MARKED}, [stale], crds.parent)) == ["removed crds/old.yaml"]
    assert sorted(crds.iterdir()) == [wanted, handmade]


def test_folders_are_made(crds: pathlib.Path) -> None:
    file = crds / "deep" / "a.yaml"
    assert list(generate.write({file: "a\n"}, [], crds.parent)) == ["wrote crds/deep/a.yaml"]
    assert file.read_text() == "a\n"


def run(monkeypatch: pytest.MonkeyPatch, root: pathlib.Path, *arguments: str) -> int:
    monkeypatch.setattr(generate, "ROOT", root)
    monkeypatch.setattr(generate, "GENERATORS", (lambda: [(root / "crds/a.yaml", MARKED)],))
    return generate.main(arguments)


def test_check_fails_until_the_files_are_written(
    monkeypatch: pytest.MonkeyPatch, crds: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, crds.parent, "--check") == 1
    shown = capsys.readouterr()
    assert f"+{MARKED}" in shown.out
    assert "make generate" in shown.err
    assert not (crds / "a.yaml").exists()
    assert run(monkeypatch, crds.parent) == 0
    assert capsys.readouterr().out == "wrote crds/a.yaml\n"
    assert run(monkeypatch, crds.parent, "--check") == 0


def test_the_generators_name_each_file_once() -> None:
    files = [path for generator in (generate.crd_files, generate.reference_files) for path, _ in generator()]
    assert len(set(files)) == len(files) == 3


@pytest.mark.parametrize("generator", [generate.crd_files, generate.reference_files])
def test_committed_files_are_up_to_date(generator: object) -> None:
    assert callable(generator)
    wanted = dict(generator())
    assert list(generate.differences(wanted, [], generate.ROOT)) == []


def links_of(page: str) -> set[str]:
    return {part.partition(")")[0] for part in page.split("](#")[1:]}


@pytest.mark.parametrize("page", [reference_pages.inference_service_page(""), reference_pages.conditions_page("")])
def test_links_inside_a_page_lead_somewhere(page: str) -> None:
    headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    anchors = {
        "".join(letter for letter in heading.lower() if letter.isalnum() or letter == "-") for heading in headings
    }
    assert links_of(page)
    assert links_of(page) <= anchors


def test_tables_keep_their_shape() -> None:
    for page in (reference_pages.inference_service_page(""), reference_pages.conditions_page("")):
        for table in page.split("\n\n"):
            rows = [line.replace("\\|", "").count("|") for line in table.splitlines() if line.startswith("|")]
            assert len(set(rows)) <= 1, table

"""`sglang-operator simulate` as a person and as a program meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_operator.simulate.command import main

SHORT = ("--curve", "founding", "--workload", "W1")
FIGURES = {"regret_percent", "worst_60s_regret_percent", "threshold_changes", "probe_percent", "settled_seconds"}
BASELINES = {"on", "off", "fixed:8", "fixed:32", "fixed:64", "adaptive", "bandit", "oracle"}


def test_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() > FIGURES
    assert (found["curve"], found["workload"], found["policy"], found["seed"]) == ("founding", "W1", "auto", 0)
    assert set(found["baselines"]) == BASELINES
    assert all(each.keys() >= FIGURES for each in found["baselines"].values())
    assert found["baselines"]["oracle"]["regret_percent"] == 0 < found["baselines"]["on"]["regret_percent"]
    assert len(found["decisions"]) == found["threshold_changes"]
    assert all("instead of" in each["message"] for each in found["decisions"])


def test_a_table_and_a_picture_of_a_curve_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve, picture = tmp_path / "mine.csv", tmp_path / "mine.svg"
    curve.write_text("batch_size,mode,tokens_per_second\n1,on,60\n1,off,50\n64,on,700\n64,off,1200\n")
    arguments = ["--curve", str(curve), "--workload", "W1", "--policy", "fixed:20", "--seed", "7"]
    assert main([*arguments, "--picture", str(picture)]) == 0
    table = capsys.readouterr().out
    assert "Curve mine: the better mode is on at 1 request, off from " in table
    assert {line.split()[0] for line in table.splitlines() if " % " in line} == {*BASELINES, "fixed:20"}
    assert "never drafting" in picture.read_text(), "text stays text"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--curve", "nope"], "--curve: there is no curve 'nope'; known curves: triton, "),
        (["--curve", "nope.csv"], "--curve nope.csv: No such file or directory"),
        (["--curve", "bad.csv"], "--curve: bad.csv: '8,fast,3' is no point; the form is 8,on,1943.5"),
        (["--curve", "binary.csv"], "--curve binary.csv: no text in UTF-8; the first line must be batch_size,mode,"),
        (["--accept-length", "9"], "--accept-length: '9' is no number from 1 to 4"),
        (["--accept-length", "nan"], "--accept-length: 'nan' is no number from 1 to 4"),
        (["--workload", "W11"], "--workload: there is no workload 'W11'; known workloads: W1, W2, "),
        (["--policy", "fixed:x"], "--policy: there is no policy 'fixed:x'; known: on, off, auto, "),
        (["--seed", "x"], "--seed: invalid int value: 'x'"),
        (["--picture", "run.jpg"], "--picture run.jpg: the name must end in .svg or .png"),
    ],
)
def test_what_can_not_be_used_is_refused_with_the_option_and_the_right_form(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("batch_size,mode,tokens_per_second\n8,fast,3\n")
    Path("binary.csv").write_bytes(b"\xff\xfe")
    assert sentence in refused([*SHORT, *arguments], capsys)


def test_curve_and_workload_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: --curve, --workload" in refused([], capsys)

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_operator.simulate.curves.csvfile import curve_from_csv
from sglang_operator.simulate.curves.curve import CurveError, Mode

HEADER = "batch_size,mode,tokens_per_second\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text(text)
    return path


def test_a_measured_curve(tmp_path: Path) -> None:
    path = written(tmp_path, f"# on my card\n{HEADER}1,on,120\n1,off,50\n\n8,on,480\n8,off,390\n8,none,400\n")
    curve = curve_from_csv(path, accept_length=2.0)
    assert curve.name == "measured"
    assert curve.tokens_per_second(Mode.ON, 1) == pytest.approx(120)
    assert curve.tokens_per_second(Mode.OFF, 8) == pytest.approx(390)
    assert curve.tokens_per_second(Mode.NONE, 8) == pytest.approx(400)
    assert curve.accept_length == 2.0


def test_none_is_off_where_it_was_not_measured(tmp_path: Path) -> None:
    curve = curve_from_csv(written(tmp_path, f"{HEADER}1,on,120\n1,off,50\n"), accept_length=2.4)
    assert curve.none == curve.off


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the first line must be"),
        ("batch,mode,rate\n1,on,2\n", "the first line must be batch_size,mode,tokens_per_second"),
        (f"{HEADER}1,on,100\n", "both modes on and off"),
        (f"{HEADER}1,fast,100\n", "is no point; the form is 8,on,1943.5"),
        (f"{HEADER}0,on,100\n", "is no point"),
        (f"{HEADER}1,on,-3\n", "is no point"),
        (f"{HEADER}1,on,nan\n", "is no point"),
        (f"{HEADER}1,on,inf\n", "is no point"),
        (f"{HEADER}1.5,on,3\n", "is no point"),
        (f"{HEADER}1,on\n", "is no point"),
        (f"{HEADER}1,on,100,7\n", "is no point"),
        (f"{HEADER}1,on,100\n1,on,90\n1,off,50\n", "batch sizes must rise"),
    ],
)
def test_bad_files_are_refused_with_the_form(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(CurveError, match=complaint):
        curve_from_csv(written(tmp_path, text), accept_length=2.4)

"""From text to numbers: nothing that isn't a plain number, an engine bucket or a mode gets through."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_operator.tuning.samples import (
    BUCKETS,
    PROBES,
    WINDOWS,
    Answers,
    Mode,
    Row,
    assemble,
    parse_bucket,
    parse_mode,
    parse_number,
    parse_window,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ROW = Row(namespace="team", pod="pod", mode="on", batch_size="9-12", window="0+30", value="5")
TIME = Row(namespace="team", pod="pod", series="sglang:x", value=str(NOW.timestamp()))


def test_the_buckets_are_the_engine_s() -> None:
    labels = "1, 2, 3-4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-32, 33-48, 49-64, 65-96, 97-128, 129-192, 193-256, 257+"
    assert [bucket.label for bucket in BUCKETS] == labels.split(", ")
    assert all(parse_bucket(bucket.label) is bucket for bucket in BUCKETS)


@pytest.mark.parametrize("label", ["", "0", "9-13", "9 - 12", "257", "+Inf", "on", "٩-١٢", "1-1"])
def test_other_labels_are_no_buckets(label: str) -> None:
    assert parse_bucket(label) is None


def test_windows() -> None:
    assert all(parse_window(window.label) is window for window in (*WINDOWS, PROBES))
    assert parse_window("") is parse_window("30") is None


@pytest.mark.parametrize(("label", "mode"), [("on", Mode.ON), ("off", Mode.OFF), ("ON", None), ("", None), ("x", None)])
def test_modes(label: str, mode: Mode | None) -> None:
    assert parse_mode(label) is mode


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0.0), ("12", 12.0), ("0.5", 0.5), ("1e3", 1000.0), ("1.5E-3", 0.0015), ("+2", 2.0)]
)
def test_numbers(text: str, number: float) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "nan",
        "+Inf",
        "-Inf",
        "inf",
        "infinity",
        "",
        " ",
        "1e400",
        "-1",
        "-0",
        "1_000",
        " 1",
        "1\n",
        "0x1",
        "1,5",
        "١",
        "1e",
    ],
)
def test_what_is_no_number(text: str) -> None:
    assert parse_number(text) is None


@given(st.text())
def test_any_text_is_a_finite_number_of_at_least_zero_or_none(text: str) -> None:
    number = parse_number(text)
    assert number is None or 0 <= number < float("inf")


@given(st.floats(min_value=0, allow_infinity=False))
def test_every_such_float_survives(number: float) -> None:
    assert parse_number(repr(number)) == number


NEEDED = ("steps", "requests", "tokens", "seconds")
WHOLE = {"steps": "10", "requests": "110", "tokens": "264", "seconds": "0.5", "seconds_squared": "0.03"}


def answers(**values: str) -> Answers:
    """Answers with one row of each of these metrics."""
    return Answers(**{name: (replace(ROW, value=value),) for name, value in values.items()}, sampled_at=(TIME,))


def test_four_sums_make_a_sample() -> None:
    snapshot = assemble(answers(**WHOLE), taken_at=NOW)
    (sample,) = snapshot.modes
    assert (sample.steps, sample.requests, sample.tokens, sample.seconds) == (10, 110, 264, 0.5)
    assert (sample.window, sample.seconds_squared) == (WINDOWS[0], 0.03)
    (load,) = snapshot.loads
    assert (load.sampled_at, load.running_requests, load.queued_requests, load.series) == (NOW, None, None, "sglang:x")


def test_the_squares_may_be_missing() -> None:
    (sample,) = assemble(answers(**{name: WHOLE[name] for name in NEEDED}), taken_at=NOW).modes
    assert sample.seconds_squared is None


@pytest.mark.parametrize("missing", NEEDED)
def test_with_one_of_the_four_missing_there_is_no_sample(missing: str) -> None:
    rest = {name: value for name, value in WHOLE.items() if name != missing}
    assert assemble(answers(**rest), taken_at=NOW).modes == ()
    assert assemble(answers(**rest | {missing: "0"}), taken_at=NOW).modes == ()


@pytest.mark.parametrize("bad", NEEDED)
def test_a_bad_number_takes_its_partners_with_it(bad: str) -> None:
    snapshot = assemble(answers(**WHOLE | {bad: "NaN"}), taken_at=NOW)
    assert snapshot.modes == ()
    assert snapshot.ignored.bad_number == 1


def test_windows_are_told_apart() -> None:
    rows = tuple(replace(ROW, window=window.label) for window in WINDOWS)
    snapshot = assemble(Answers(**dict.fromkeys(NEEDED, rows)), taken_at=NOW)
    assert [sample.window for sample in snapshot.modes] == list(WINDOWS)


def test_probes_are_counted_in_their_own_window() -> None:
    row = replace(ROW, window=PROBES.label)
    snapshot = assemble(Answers(probe_steps=(row, ROW, replace(row, mode="off", value="0"))), taken_at=NOW)
    assert [(probe.mode, probe.steps) for probe in snapshot.probes] == [(Mode.ON, 5)]


def test_each_cause_is_counted() -> None:
    rows = (
        replace(ROW, pod=""),
        replace(ROW, namespace=""),
        replace(ROW, batch_size="9-13"),
        replace(ROW, mode="both"),
        replace(ROW, window="1m"),
        replace(ROW, value="+Inf"),
    )
    times = (replace(TIME, pod=""), replace(TIME, value="1e18"), replace(TIME, value="NaN"))
    gauge = (Row(namespace="team", pod="pod", value="NaN"),)
    asked = Answers(tokens=rows, sampled_at=times, running_requests=gauge, queued_requests=gauge)
    ignored = assemble(asked, taken_at=NOW).ignored
    assert (ignored.no_pod, ignored.unknown_bucket, ignored.unknown_mode) == (3, 1, 1)
    assert (ignored.unknown_window, ignored.bad_number) == (1, 5)


def test_the_newest_series_of_a_pod_gives_its_time() -> None:
    older = replace(TIME, series="sglang_x", value=str(NOW.timestamp() - 60))
    for rows in ((TIME, older), (older, TIME)):
        (load,) = assemble(Answers(sampled_at=rows), taken_at=NOW).loads
        assert (load.sampled_at, load.series) == (NOW, "sglang:x")

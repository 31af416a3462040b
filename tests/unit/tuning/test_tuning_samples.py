"""From text to numbers: nothing that isn't a plain number, an engine bucket or a mode gets through."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_operator.tuning.samples import (
    BUCKETS,
    Answers,
    Mode,
    Row,
    assemble,
    parse_bucket,
    parse_mode,
    parse_number,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ROW = Row(namespace="team", pod="pod", mode="on", batch_size="9-12", value="5")
TIME = Row(namespace="team", pod="pod", series="sglang:x", value=str(NOW.timestamp()))


def test_the_buckets_are_the_engine_s() -> None:
    labels = "1, 2, 3-4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-32, 33-48, 49-64, 65-96, 97-128, 129-192, 193-256, 257+"
    assert [bucket.label for bucket in BUCKETS] == labels.split(", ")
    assert all(parse_bucket(bucket.label) is bucket for bucket in BUCKETS)


@pytest.mark.parametrize("label", ["", "0", "9-13", "9 - 12", "257", "+Inf", "on", "٩-١٢", "1-1"])
def test_other_labels_are_no_buckets(label: str) -> None:
    assert parse_bucket(label) is None


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


def test_tokens_and_seconds_make_a_sample_and_recent_seconds_may_be_missing() -> None:
    answers = Answers(tokens=(replace(ROW, value="800"),), seconds=(replace(ROW, value="2"),), sampled_at=(TIME,))
    snapshot = assemble(answers, taken_at=NOW)
    (sample,) = snapshot.modes
    assert (sample.tokens, sample.seconds, sample.recent_seconds) == (800, 2, 0)
    (load,) = snapshot.loads
    assert (load.sampled_at, load.running_requests, load.series) == (NOW, None, "sglang:x")


@pytest.mark.parametrize("missing", ["tokens", "seconds"])
def test_one_without_the_other_is_no_rate(missing: str) -> None:
    answers = replace(Answers(tokens=(ROW,), seconds=(ROW,)), **{missing: ()})
    assert assemble(answers, taken_at=NOW).modes == ()


@pytest.mark.parametrize("bad", ["tokens", "seconds"])
def test_a_bad_number_takes_its_partner_with_it(bad: str) -> None:
    answers = replace(Answers(tokens=(ROW,), seconds=(ROW,)), **{bad: (replace(ROW, value="NaN"),)})
    snapshot = assemble(answers, taken_at=NOW)
    assert snapshot.modes == ()
    assert snapshot.ignored.bad_number == 1


def test_each_cause_is_counted() -> None:
    rows = (
        replace(ROW, pod=""),
        replace(ROW, namespace=""),
        replace(ROW, batch_size="9-13"),
        replace(ROW, mode="both"),
        replace(ROW, value="+Inf"),
    )
    times = (replace(TIME, pod=""), replace(TIME, value="1e18"), replace(TIME, value="NaN"))
    running = (Row(namespace="team", pod="pod", value="NaN"),)
    ignored = assemble(Answers(tokens=rows, sampled_at=times, running_requests=running), taken_at=NOW).ignored
    assert (ignored.no_pod, ignored.unknown_bucket, ignored.unknown_mode, ignored.bad_number) == (3, 1, 1, 4)


def test_the_newest_series_of_a_pod_gives_its_time() -> None:
    older = replace(TIME, series="sglang_x", value=str(NOW.timestamp() - 60))
    for rows in ((TIME, older), (older, TIME)):
        (load,) = assemble(Answers(sampled_at=rows), taken_at=NOW).loads
        assert (load.sampled_at, load.series) == (NOW, "sglang:x")

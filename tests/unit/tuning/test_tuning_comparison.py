"""Measured rates against each other: losses, the best threshold, crossings, and which batch size says so."""

from __future__ import annotations

import math

import pytest
from evidence import at

from sglang_operator.simulate.curves.curve import Mode as EngineMode
from sglang_operator.simulate.curves.families import curve_by_name
from sglang_operator.tuning import load
from sglang_operator.tuning.comparison import Comparison, compare
from sglang_operator.tuning.estimate import Drifts, Estimator
from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.model import Cell
from sglang_operator.tuning.samples import BUCKETS, WINDOWS


def judge(*groups: tuple[Cell, ...], standing: int = 32, low: int = 1, high: int = 256) -> Comparison | None:
    cells = [cell for group in groups for cell in group]
    return compare(
        Estimator(cells, Drifts(), DEFAULTS),
        load.present(cells, DEFAULTS),
        low=low,
        high=high,
        standing=standing,
        seen=load.seen(cells) if cells else (1, 1),
        deviations=DEFAULTS.deviations,
    )


def surely(found: Comparison | None) -> Comparison:
    assert found is not None
    return found


def measured(curve: str, *labels: str, seconds: float = 20) -> tuple[tuple[Cell, ...], ...]:
    """Rates of a curve in the middle of these buckets."""
    known = curve_by_name(curve)
    groups = []
    for bucket in BUCKETS:
        if bucket.label in labels and bucket.high:
            batch = round(math.sqrt(bucket.low * bucket.high))
            on, off = (known.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
            groups.append(at(bucket.label, on=on, off=off, batch=batch, seconds=seconds))
    return tuple(groups)


def test_a_gain_is_a_part_of_the_whole_present_load() -> None:
    """A tenth of the time is known in both modes, so a saving of a half there is a gain of a twentieth."""
    small, large = at("5-6", on=500, off=1000, seconds=5), at("97-128", off=9000, seconds=90)
    found = surely(judge(small, large))
    assert found.load_gain.value == pytest.approx(0.05, rel=0.01)
    assert found.best <= 6
    assert found.load_gain.deviation > 0


def test_the_load_of_the_last_minutes_weighs() -> None:
    """Drafting loses at 9-12 and wins at 49-64: one threshold can't have both, and the busier side gets it."""

    def with_time(small: float, large: float) -> Comparison:
        old = WINDOWS[3]
        history = (at("9-12", on=500, off=1000, window=old), at("49-64", on=1000, off=500, window=old))
        return surely(
            judge(at("9-12", on=500, off=1000, seconds=small), at("49-64", on=1000, off=500, seconds=large), *history)
        )

    mostly_small, mostly_large = with_time(50, 10), with_time(10, 50)
    assert mostly_small.best <= 9
    assert mostly_small.witness.difference.batch_size < 13
    assert mostly_large.best > 64
    assert mostly_large.witness.difference.batch_size > 48


def test_nothing_to_compare() -> None:
    assert judge() is None
    assert judge(at("9-12", on=500)) is None
    assert judge(at("9-12", on=500), at("9-12", off=900, window=WINDOWS[3])) is not None, "old evidence is evidence"


def test_a_threshold_that_nothing_beats_stays() -> None:
    found = surely(judge(at("9-12", on=800, off=400), standing=32))
    assert (found.best, found.load_gain.value, found.span_gain.value) == (32, 0, 0)


def test_bounds_leave_only_what_they_allow() -> None:
    found = surely(judge(at("9-12", on=500, off=1000), standing=32, low=20, high=40))
    assert 20 <= found.best <= 32
    assert found.load_gain.value == 0
    found = surely(judge(at("25-32", on=500, off=1000), standing=32, low=20, high=40))
    assert 20 <= found.best <= 25


@pytest.mark.parametrize(
    ("curve", "labels"),
    [
        ("mid", ("9-12", "33-48", "97-128")),
        ("mid", ("17-24", "65-96")),
        ("founding", ("1", "3-4", "17-24")),
        ("strong-draft", ("65-96", "129-192", "193-256")),
    ],
)
@pytest.mark.parametrize("standing", [1, 32, 256])
def test_the_threshold_goes_to_the_crossing(curve: str, labels: tuple[str, ...], standing: int) -> None:
    """Inside a bucket, too, and also where that bucket was never seen: nowhere in between is more than 5 % lost."""
    groups, known = measured(curve, *labels), curve_by_name(curve)
    smallest, largest = load.seen([cell for group in groups for cell in group])
    best = surely(judge(*groups, standing=standing)).best
    for batch in range(math.ceil(smallest), int(largest) + 1):
        on, off = (known.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
        assert (on if batch < best else off) >= 0.95 * max(on, off), batch


@pytest.mark.parametrize(("curve", "best"), [("never-helps", 1), ("always-helps", 256)])
def test_without_a_crossing_one_mode_has_it_all(curve: str, best: int) -> None:
    found = surely(judge(*measured(curve, "1", "9-12", "49-64", "193-256"), standing=32))
    assert found.best == best
    assert found.crossings == ()


def test_the_line_says_what_comes_next_and_only_where_it_is_sure() -> None:
    """Twice as fast drafting at 5 to 12 requests: at 20, too; a lead of 5 % tells nothing about 20."""
    sure = surely(judge(at("5-6", on=800, off=400), at("9-12", on=1500, off=750), standing=13))
    assert sure.best > 20
    assert sure.peak_gain.value > 0.3
    unsure = surely(judge(at("5-6", on=420, off=400), at("9-12", on=788, off=750), standing=13))
    assert (unsure.best, unsure.peak_gain.value) == (13, 0)


def test_a_large_loss_at_one_size_speaks_however_little_load_is_there() -> None:
    seen = ("1", "3-4", "9-12", "33-48", "97-128")
    found = surely(judge(*measured("mid", *seen), standing=32))
    assert 40 <= found.best <= 51
    assert found.peak_gain.surely(2) > 0.05 > 0.02 > found.span_gain.value
    back = surely(judge(*measured("mid", *seen), standing=found.best))
    assert back.peak_gain.value == 0


def test_two_crossings_are_told() -> None:
    found = surely(judge(*measured("two-crossings", "1", "2", "3-4", "9-12", "17-24", "33-48", "97-128"), standing=32))
    assert len(found.crossings) == 2
    assert found.starts_off
    first, second = found.crossings
    assert 4 <= first <= 9
    assert 40 <= second <= 75


def test_all_batch_sizes_that_were_seen_speak_for_the_time_when_the_load_comes_back() -> None:
    """All of the present load is at 97-128, where 20 is right; but 20 loses much at 20 to 50, where load was."""
    past = tuple(
        at(label, on=on, off=1000, window=WINDOWS[3])
        for label, on in (("17-24", 1600), ("33-48", 1300), ("65-96", 700))
    )
    found = surely(judge(at("97-128", on=600, off=1000), *past, standing=20))
    assert found.load_gain.value == 0
    assert found.span_gain.value > 0.05
    assert 33 < found.best < 97

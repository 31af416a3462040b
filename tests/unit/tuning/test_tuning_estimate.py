"""Rates and their uncertainty at any batch size, from a few cells of steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evidence import at, cell
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_operator.tuning.drift import find
from sglang_operator.tuning.estimate import Difference, Drifts, Estimate, Estimator, step_variance
from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.model import Cell
from sglang_operator.tuning.samples import WINDOWS, Mode, Window


def estimator(*groups: tuple[Cell, ...], drifts: Drifts | None = None) -> Estimator:
    return Estimator([item for group in groups for item in group], drifts or Drifts(), DEFAULTS)


def difference(found: Estimator, batch: float) -> Difference:
    known = found.difference(batch)
    assert known is not None
    return known


def affine_cells(mode: Mode, base: float, slope: float, *labels_and_batches: tuple[str, float]) -> tuple[Cell, ...]:
    """Cells of a mode whose step takes base + slope * batch seconds."""
    accepted = 2.4 if mode is Mode.ON else 1.0
    return tuple(
        cell(mode, label, batch * accepted / (base + slope * batch), batch=batch) for label, batch in labels_and_batches
    )


def test_at_a_measured_batch_size_the_rates_are_the_measured_ones() -> None:
    found = difference(estimator(at("9-12", on=800, off=1000, batch=10)), 10)
    assert found.on.value == pytest.approx(800, rel=0.01)
    assert found.off.value == pytest.approx(1000, rel=0.01)
    assert found.better is Mode.OFF
    assert found.loss(Mode.ON) == pytest.approx(0.2, abs=0.01)
    assert found.loss(Mode.OFF) == 0


@pytest.mark.parametrize("batch", [8, 16, 24, 40, 64])
def test_between_two_batch_sizes_the_line_is_followed(batch: float) -> None:
    off = affine_cells(Mode.OFF, 0.020, 0.0002, ("7-8", 8), ("49-64", 64))
    on = affine_cells(Mode.ON, 0.027, 0.0010, ("7-8", 8), ("49-64", 64))
    found = difference(estimator(off, on), batch)
    assert found.off.value == pytest.approx(batch / (0.020 + 0.0002 * batch), rel=0.03)
    assert found.on.value == pytest.approx(batch * 2.4 / (0.027 + 0.0010 * batch), rel=0.03)


def test_far_beyond_what_was_seen_nothing_is_known() -> None:
    found = estimator(at("9-12", on=800, off=1000, batch=10))
    near, far = difference(found, 12), difference(found, 20)
    assert far.deviation > 2 * near.deviation, "the further away, the less is known"
    assert found.difference(21) is None
    assert difference(found, 5).deviation > 2 * near.deviation
    assert found.difference(4.9) is None


def test_the_same_batch_in_both_modes_however_the_batches_differed() -> None:
    """33 requests drafting against 48 not drafting: the plain rates would differ by the batch alone."""
    steps = [affine_cells(mode, 0.02, 0.0004, ("17-24", 20), ("65-96", 80)) for mode in Mode]
    on = affine_cells(Mode.ON, 0.02, 0.0004, ("33-48", 33))
    off = affine_cells(Mode.OFF, 0.02, 0.0004, ("33-48", 48))
    found = difference(estimator(*steps, on, off), 40)
    assert found.on.value / found.off.value == pytest.approx(2.4, rel=0.02)


def test_uncertainty_falls_with_steps_and_rises_with_age_and_distance() -> None:
    few, many = (estimator(at("9-12", on=800, off=1000, seconds=s, batch=10)) for s in (0.3, 20))
    assert difference(few, 10).deviation > 1.5 * difference(many, 10).deviation
    old = estimator(at("9-12", on=800, off=1000, batch=10, window=WINDOWS[3]))
    assert difference(old, 10).deviation > 1.5 * difference(many, 10).deviation
    assert difference(many, 13).deviation > 1.5 * difference(many, 10).deviation


def test_newer_numbers_outweigh_older_ones() -> None:
    both = estimator(at("9-12", on=800, off=1000, batch=10), at("9-12", on=1200, off=1000, batch=10, window=WINDOWS[3]))
    assert difference(both, 10).on.value == pytest.approx(800, rel=0.06)


def test_what_is_older_than_a_drift_speaks_only_where_nothing_newer_does() -> None:
    old = at("9-12", on=1200, off=1000, batch=10, window=WINDOWS[2])
    drifts = Drifts(steps=100, yields=100)
    alone = difference(estimator(old, drifts=drifts), 10)
    assert alone.on.value == pytest.approx(1200, rel=0.01)
    assert alone.deviation > 0.3
    newer = difference(estimator(old, at("9-12", on=800, batch=10), drifts=drifts), 10)
    assert newer.on.value == pytest.approx(800, rel=0.03)
    assert newer.on.deviation < 0.1


def test_possible_loss_asks_how_good_the_other_mode_might_be() -> None:
    found = Difference(8, on=Estimate(100, 0.5), off=Estimate(90, 0.1))
    assert found.possible_loss(Mode.ON, 2) == pytest.approx(1 - 100 / 90 * math.exp(-0.2))
    assert found.possible_loss(Mode.OFF, 2) == pytest.approx(1 - 0.9 * math.exp(-1.0))
    assert Difference(8, on=Estimate(200, 0.5), off=Estimate(90, 0.1)).possible_loss(Mode.ON, 2) == 0


def test_a_measured_spread_of_the_steps_replaces_the_assumed_one() -> None:
    (calm,) = at("9-12", off=1000, batch=10)
    squares = calm.seconds**2 / calm.steps
    assert step_variance(replace(calm, seconds_squared=1.25 * squares)) > 100 * step_variance(calm)
    assert step_variance(replace(calm, seconds_squared=None)) == pytest.approx(0.04 / calm.steps)
    assert step_variance(replace(calm, seconds_squared=0.5 * squares)) <= step_variance(calm), "rounding below the mean"


def drifts(*cells: tuple[Cell, ...]) -> Drifts:
    return find([item for group in cells for item in group], Drifts())


def test_a_jump_of_the_yield_is_found_at_its_border_and_only_there() -> None:
    """Other prompts: the same seconds, fewer accepted drafts."""
    before = [at("25-32", on=1600, off=1000, window=window) for window in WINDOWS[2:]]
    after = [
        tuple(replace(item, tokens=item.tokens * (0.7 if item.mode is Mode.ON else 1)) for item in group)
        for group in (at("25-32", on=1600, off=1000, window=window) for window in WINDOWS[:2])
    ]
    assert drifts(*before, *after) == Drifts(yields=90)


def test_a_jump_of_the_seconds_is_found() -> None:
    before = [at("25-32", on=1600, off=1000, window=window) for window in WINDOWS[1:]]
    assert drifts(*before, at("25-32", on=1300, off=800)).steps == 30


def test_no_drift_in_equal_numbers_in_few_steps_or_by_the_batch_alone() -> None:
    assert drifts(*(at("25-32", on=1600, off=1000, window=window) for window in WINDOWS)) == Drifts()
    older = [at("25-32", on=1600, off=1000, window=window) for window in WINDOWS[1:]]
    assert drifts(*older, at("25-32", on=1400, seconds=0.1)) == Drifts()
    small, large = (affine_cells(Mode.OFF, 0.001, 0.01, ("33-48", batch)) for batch in (33, 48))
    shifted = [tuple(replace(item, window=WINDOWS[2]) for item in small), large]
    assert drifts(*shifted) == Drifts(), "a step of 48 takes longer than one of 33"


def test_a_known_drift_stays_known() -> None:
    cells = at("25-32", on=1600, off=1000)
    assert find(cells, Drifts(steps=70, yields=400)) == Drifts(steps=70, yields=400)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Mode)),
            st.sampled_from(["1", "5-6", "25-32", "257+"]),
            st.floats(1e-3, 1e6),
            st.floats(1e-3, 900),
            st.sampled_from(WINDOWS),
        ),
        min_size=1,
        max_size=10,
    ),
    st.floats(1, 400),
)
def test_any_cells_give_finite_positive_numbers_or_none(
    drawn: list[tuple[Mode, str, float, float, Window]], batch: float
) -> None:
    cells = [cell(mode, label, rate, seconds=s, window=w) for mode, label, rate, s, w in drawn]
    found = Estimator(cells, find(cells, Drifts()), DEFAULTS).difference(batch)
    if found is not None:
        for rate in (found.on, found.off):
            assert 0 < rate.value < math.inf
            assert 0 < rate.deviation < math.inf
        assert 0 <= found.loss(Mode.ON) <= 1
        assert 0 <= found.possible_loss(Mode.OFF, 2) <= 1

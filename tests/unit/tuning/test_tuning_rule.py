"""What a threshold means, with 0 as the widest setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_operator.tuning import rule
from sglang_operator.tuning.samples import Mode
from sglang_specpatch.runtime.probing import drafting_stops


@pytest.mark.parametrize(
    ("threshold", "low", "high", "expected"),
    [
        (32, 1, 256, 32),
        (300, 1, 256, 256),
        (2, 8, 256, 8),
        (0, 1, 256, 256),
        (1, 1, 16, 1),
        (7, 7, 7, 7),
        (0, 7, 7, 7),
    ],
)
def test_clamp(threshold: int, low: int, high: int, expected: int) -> None:
    assert rule.clamp(threshold, low=low, high=high) == expected


@given(st.integers(0, 400), st.integers(1, 300))
def test_the_mode_is_the_engine_s(threshold: int, batch: int) -> None:
    assert (rule.mode(threshold, batch) is Mode.OFF) is drafting_stops(threshold, batch)


def test_candidates_are_the_bucket_starts_within_the_bounds() -> None:
    assert rule.candidates(low=1, high=256) == (1, 2, 3, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 256)
    assert rule.candidates(low=193, high=500) == (193, 257, 500)
    assert rule.candidates(low=10, high=20) == (10, 13, 17, 20)
    assert rule.candidates(low=8, high=8) == (8,)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 500))
def test_nothing_leaves_the_bounds(one: int, other: int, threshold: int) -> None:
    low, high = min(one, other), max(one, other)
    for value in (rule.clamp(threshold, low=low, high=high), *rule.candidates(low=low, high=high)):
        assert low <= value <= high


def test_nearest() -> None:
    assert rule.nearest([49, 65], 60) == 65
    assert rule.nearest([7, 9], 8) == 7
    assert rule.nearest([9], 256) == 9


def test_words() -> None:
    assert [rule.describe(value) for value in (0, 1, 9)] == ["0 (always draft)", "1 (never draft)", "9"]

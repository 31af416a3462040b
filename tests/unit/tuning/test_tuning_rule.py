"""What a threshold means, with 0 as the widest setting."""

from __future__ import annotations

import pytest
from evidence import bucket
from hypothesis import given
from hypothesis import strategies as st

from sglang_operator.api.names import THRESHOLD_MAX
from sglang_operator.tuning import rule
from sglang_operator.tuning.samples import BUCKETS


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


@pytest.mark.parametrize(
    ("threshold", "label", "share"),
    [
        (0, "1", 1.0),
        (0, "257+", 1.0),
        (1, "1", 0.0),
        (2, "1", 1.0),
        (9, "9-12", 0.0),
        (11, "9-12", 0.5),
        (13, "9-12", 1.0),
        (257, "257+", 0.0),
        (258, "257+", 1.0),
    ],
)
def test_drafting_share(threshold: int, label: str, share: float) -> None:
    assert rule.drafting_share(threshold, bucket(label)) == share


@given(st.integers(0, 400), st.integers(1, 300))
def test_the_share_agrees_with_the_rule_batch_by_batch(threshold: int, batch: int) -> None:
    """The engine drafts when the threshold is 0 or the batch is smaller than it."""
    item = next(b for b in BUCKETS if b.low <= batch and (b.high is None or batch <= b.high))
    share = rule.drafting_share(threshold, item)
    drafts = threshold == 0 or batch < threshold
    if share in (0.0, 1.0) and item.high is not None:
        assert drafts == (share == 1.0)


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


def test_above_and_words() -> None:
    assert rule.above(bucket("9-12")) == 13
    assert rule.above(bucket("257+")) == THRESHOLD_MAX
    assert [rule.describe(value) for value in (0, 1, 9)] == ["0 (always draft)", "1 (never draft)", "9"]

"""Measured rates against each other: losses, the best threshold, and which bucket says so."""

from __future__ import annotations

import pytest
from evidence import at, bucket, fresh

from sglang_operator.tuning import rule
from sglang_operator.tuning.comparison import Comparison, Pair, compare
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import BucketEvidence

ALLOWED = rule.candidates(low=1, high=256)


def judge(*buckets: BucketEvidence, standing: int = 32, allowed: tuple[int, ...] = ALLOWED) -> Comparison | None:
    return compare(fresh(*buckets), allowed=allowed, standing=standing, limits=Limits())


@pytest.mark.parametrize(("threshold", "loss"), [(0, 0.2), (13, 0.2), (11, 0.1), (9, 0.0), (1, 0.0)])
def test_a_loss_is_a_part_of_the_better_rate(threshold: int, loss: float) -> None:
    pair = Pair(bucket=bucket("9-12"), on=800, off=1000, recent_seconds=10)
    assert pair.loss(threshold) == pytest.approx(loss)


@pytest.mark.parametrize(
    ("standing", "best"),
    [(65, 49), (49, 49), (9, 33), (32, 33), (256, 49)],
)
def test_the_nearest_of_the_equally_good_thresholds(standing: int, best: int) -> None:
    """Drafting wins at 25-32, loses at 49-64; at 33-48 nothing is known, so 33 and 49 are equally good."""
    found = judge(at("25-32", on=500, off=400), at("33-48", on=500), at("49-64", on=500, off=600), standing=standing)
    assert found is not None
    assert found.best == best


def test_the_load_of_the_last_minute_weighs() -> None:
    """At 9-12 drafting wins by a fifth, at 49-64 it loses by half: two crossings, one threshold."""
    small, large = {"on": 1000.0, "off": 800.0}, {"on": 500.0, "off": 1000.0}
    mostly_small = judge(at("9-12", **small, recent=50), at("49-64", **large, recent=2))
    assert mostly_small is not None
    assert (mostly_small.best, mostly_small.gain) == (32, 0.0)
    inverted = judge(at("9-12", on=500, off=1000, recent=50), at("49-64", on=1000, off=500, recent=10))
    assert inverted is not None
    assert inverted.best == 9
    assert inverted.gain == pytest.approx(0.5 * 50 / 60)
    assert inverted.witness.bucket.label == "9-12"
    inverted = judge(at("9-12", on=500, off=1000, recent=10), at("49-64", on=1000, off=500, recent=50))
    assert inverted is not None
    assert inverted.best == 65
    assert inverted.witness.bucket.label == "49-64"


def test_a_gain_is_a_part_of_the_whole_load() -> None:
    """Only a tenth of the load is known in both modes, so a saving of a half there is a gain of a twentieth."""
    found = judge(at("9-12", on=500, off=1000, recent=6), at("49-64", off=900, recent=54))
    assert found is not None
    assert found.gain == pytest.approx(0.05)


def test_what_was_seen_too_shortly_or_is_not_busy_does_not_count() -> None:
    assert judge(at("9-12", on=500, off=1000, seconds=1.9)) is None
    assert judge(at("9-12", on=500, off=1000, recent=0), at("49-64", on=1)) is None
    assert judge(at("9-12", on=0.0, off=1000)) is None
    assert judge() is None


def test_bounds_leave_only_what_they_allow() -> None:
    allowed = rule.candidates(low=20, high=40)
    found = judge(at("9-12", on=500, off=1000), standing=32, allowed=allowed)
    assert found is not None
    assert (found.best, found.gain) == (32, 0.0)
    found = judge(at("25-32", on=500, off=1000), standing=32, allowed=allowed)
    assert found is not None
    assert found.best == 25


@pytest.mark.parametrize(("on", "off", "best"), [(1100, 1000, 33), (1000, 1100, 25)])
def test_a_first_value_inside_a_bucket_gives_way_to_an_edge(on: float, off: float, best: int) -> None:
    """At 32 of 25-32 the server may run all its load either way: the whole difference counts, not an eighth of it."""
    found = judge(at("25-32", on=on, off=off), standing=32)
    assert found is not None
    assert found.best == best
    assert found.gain == pytest.approx(1 / 11)


@pytest.mark.parametrize(("on", "off", "best", "gain"), [(1100, 1000, 28, 3 / 88), (1000, 1100, 25, 0.0)])
def test_a_bound_inside_a_bucket_counts_by_its_sizes(on: float, off: float, best: int, gain: float) -> None:
    found = judge(at("25-32", on=on, off=off), standing=25, allowed=rule.candidates(low=1, high=28))
    assert found is not None
    assert found.best == best
    assert found.gain == pytest.approx(gain)


def test_bounds_inside_one_bucket_leave_the_better_of_them() -> None:
    found = judge(at("25-32", on=1000, off=1100), standing=29, allowed=rule.candidates(low=28, high=30))
    assert found is not None
    assert found.best == 28

"""Probes: their share, their bursts, and that every rank takes the same ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_specpatch.runtime.buckets import BUCKETS, around, bucket, bucket_index
from sglang_specpatch.runtime.probing import BURST_STEPS, ProbeSchedule, drafting_stops

HIGHEST_SHARE = 500
STEPS_BEFORE = 2 * BURST_STEPS - 1
"""At the highest share the first burst begins with the step after so many."""


@dataclass(frozen=True)
class Turn:
    """What one decode step is decided from."""

    threshold: int
    permille: int
    batch_size: int


def _play(turns: list[Turn], schedule: ProbeSchedule | None = None) -> list[bool]:
    schedule = schedule or ProbeSchedule()
    return [schedule.probes(turn.threshold, turn.permille, turn.batch_size) for turn in turns]


def _steady(steps: int, *, threshold: int = 33, permille: int = HIGHEST_SHARE, batch_size: int = 8) -> list[Turn]:
    return [Turn(threshold, permille, batch_size)] * steps


def _runs(probes: list[bool]) -> list[tuple[bool, int]]:
    return [(probe, len(list(run))) for probe, run in itertools.groupby(probes)]


turns_strategy = st.lists(
    st.tuples(
        st.builds(Turn, st.sampled_from([0, 1, 9, 33, 500]), st.sampled_from([0, 1, 60, 500]), st.integers(1, 300)),
        st.integers(1, 60),
    ),
    max_size=25,
).map(lambda runs: [turn for turn, count in runs for _ in range(count)])


@pytest.mark.parametrize("threshold", [0, 1, 4, 8, 9, 33, 1_000_000])
@pytest.mark.parametrize("batch_size", [1, 8, 9, 64, 300, 5000])
def test_every_batch_size_is_probed_wherever_the_threshold_lies(threshold: int, batch_size: int) -> None:
    steps = 1000 * BURST_STEPS + BURST_STEPS - 1
    probes = _play(_steady(steps, threshold=threshold, permille=5, batch_size=batch_size))
    assert sum(probes) == 5 * BURST_STEPS
    assert _runs(probes)[0] == (False, 1000 * BURST_STEPS // 5 - 1), "the first burst comes after a whole period"


@pytest.mark.parametrize("permille", [1, 7, 60, 497, 500])
def test_bursts_come_whole_and_once_a_period(permille: int) -> None:
    steps = 200_000 // permille
    runs = _runs(_play(_steady(steps, permille=permille)))
    assert [probe for probe, _ in runs].count(True) == steps * permille // (1000 * BURST_STEPS), "none is lost"
    period = 1000 * BURST_STEPS / permille
    assert {length for probe, length in runs[:-1] if probe} == {BURST_STEPS}
    pauses = [length for probe, length in runs[1:-1] if not probe]
    assert all(abs(length + BURST_STEPS - period) < 1 for length in pauses)
    assert len(pauses) > 5


@given(turns_strategy)
def test_since_the_start_the_share_is_never_exceeded(turns: list[Turn]) -> None:
    earned = 0
    taken = 0
    for turn, probe in zip(turns, _play(turns), strict=True):
        earned += turn.permille
        taken += probe
        assert 1000 * taken <= earned


@given(turns_strategy, st.data())
def test_in_any_window_the_share_is_exceeded_by_one_burst_at_most(turns: list[Turn], data: st.DataObject) -> None:
    probes = _play(turns)
    start = data.draw(st.integers(0, len(turns)))
    end = data.draw(st.integers(start, len(turns)))
    earned = sum(turn.permille for turn in turns[start:end])
    assert 1000 * sum(probes[start:end]) <= earned + 1000 * BURST_STEPS


@given(turns_strategy)
def test_two_ranks_take_the_same_probes(turns: list[Turn]) -> None:
    one, other = ProbeSchedule(), ProbeSchedule()
    for turn in turns:
        assert _play([turn], one) == _play([turn], other)


@given(turns_strategy)
def test_without_a_share_there_is_no_probe(turns: list[Turn]) -> None:
    schedule = ProbeSchedule()
    for turn, probe in zip(turns, _play(turns, schedule), strict=True):
        assert not (probe and turn.permille == 0)


def test_credit_outlasts_a_share_of_nought_and_does_not_grow_in_it() -> None:
    """The burst comes with the step that earns the last of its credits, however long the pause before it."""
    schedule = ProbeSchedule()
    assert not any(_play([*_steady(STEPS_BEFORE), *_steady(1000, permille=0)], schedule))
    assert _play(_steady(1), schedule) == [True]


@pytest.mark.parametrize("change", [{"threshold": 34}, {"threshold": 0}, {"permille": 499}, {"permille": 0}])
def test_a_live_update_ends_a_burst_for_good(change: dict[str, int]) -> None:
    schedule = ProbeSchedule()
    assert _play(_steady(STEPS_BEFORE + 2), schedule)[-3:] == [False, True, True]
    assert _play(_steady(1, **change), schedule) == [False]
    assert not any(_play(_steady(BURST_STEPS), schedule)), "the steps left are lost"


def test_moving_the_threshold_does_not_starve_probing() -> None:
    turns = [Turn(30 + step // 97, 5, 8) for step in range(2010 * BURST_STEPS)]
    assert [probe for probe, _ in _runs(_play(turns))].count(True) == 10


@pytest.mark.parametrize(("batch_size", "stays"), [(8, True), (5, True), (12, True), (4, False), (13, False)])
def test_a_burst_ends_when_the_batch_leaves_the_buckets_around_its_beginning(batch_size: int, stays: bool) -> None:
    schedule = ProbeSchedule()
    assert _play(_steady(STEPS_BEFORE + 1), schedule)[-1]
    assert _play(_steady(1, batch_size=batch_size), schedule) == [stays]
    assert _play(_steady(2), schedule) == [stays] * 2, "and does not come back to life"


def test_a_burst_holds_its_mode_where_the_batch_crosses_the_threshold() -> None:
    schedule = ProbeSchedule()
    _play(_steady(STEPS_BEFORE, batch_size=32), schedule)
    modes, probes = [], []
    for batch_size in (32, 33, 31, 48, 33):
        probe = schedule.probes(33, 500, batch_size)
        probes.append(probe)
        modes.append(drafting_stops(33, batch_size) is not probe)
    assert modes == [True] * 5, "begun below the threshold: no drafts, on either side of it"
    assert probes == [True, False, True, False, False]


@given(turns_strategy)
def test_a_burst_is_one_mode_within_three_buckets(turns: list[Turn]) -> None:
    probes = _play(turns)
    runs = itertools.groupby(zip(turns, probes, strict=True), key=lambda pair: pair[1])
    for probe, run in runs:
        pairs = [turn for turn, _ in run]
        if probe and len(pairs) <= BURST_STEPS:  # a longer run is two bursts end to end
            indices = [bucket_index(turn.batch_size) for turn in pairs]
            assert all(abs(index - indices[0]) <= 1 for index in indices)
            assert len({drafting_stops(turn.threshold, turn.batch_size) for turn in pairs}) == 1


def test_the_neighbourhood_of_a_batch_size_is_its_bucket_and_the_two_next_to_it() -> None:
    for batch_size in range(1, 400):
        lowest, highest = around(batch_size)
        index = bucket_index(batch_size)
        expected = {bucket(size) for size in range(max(1, lowest), min(highest, 400) + 1)}
        assert expected == set(BUCKETS[max(0, index - 1) : index + 2])
        assert bucket(lowest) in expected
        assert highest >= 10**9 or bucket(highest + 1) not in expected

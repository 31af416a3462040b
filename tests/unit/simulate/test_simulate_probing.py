"""Jumps over equal steps take the same probes as the engine patch does step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_operator.simulate.probing import JumpingSchedule
from sglang_specpatch.runtime.probing import BURST_STEPS, ProbeSchedule

runs = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 9, 33]), st.sampled_from([0, 1, 60, 499, 500]), st.integers(1, 70), st.integers(1, 2000)
    ),
    max_size=6,
)


@given(runs)
def test_jumping_and_stepping_come_to_the_same(turns: list[tuple[int, int, int, int]]) -> None:
    jumping, stepping = JumpingSchedule(), ProbeSchedule()
    for threshold, permille, batch_size, steps in turns:
        left = steps
        while left:
            probe, alike = jumping.ahead(threshold, permille, batch_size)
            assert jumping.ahead(threshold, permille, batch_size) == (probe, alike), "looking changes nothing"
            taken = min(left, alike)
            jumping.advance(threshold, permille, batch_size, taken)
            assert all(stepping.probes(threshold, permille, batch_size) is probe for _ in range(taken))
            left -= taken
    assert vars(jumping) == vars(stepping)


def test_jumps_are_as_long_as_they_can_be() -> None:
    schedule = JumpingSchedule()
    seen = []
    for _ in range(4):
        seen.append(schedule.ahead(33, 5, 8))
        schedule.advance(33, 5, 8, seen[-1][1])
    assert seen == [(False, 1599), (True, BURST_STEPS), (False, 1592), (True, BURST_STEPS)]
    assert schedule.ahead(33, 0, 8)[1] > 10**9

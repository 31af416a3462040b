from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_operator.simulate.curves.acceptance import AcceptanceTable, mean_for_chain

TABLE = 4096


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.floats(1.0, n))))
def test_the_mean_is_exact_and_lengths_are_possible(drawn: tuple[int, float]) -> None:
    longest, mean = drawn
    table = AcceptanceTable(mean, longest, seed=3)
    draws = [table.draw(cursor) for cursor in range(TABLE)]
    assert sum(draws) / TABLE == pytest.approx(mean, abs=0.005)
    assert set(draws) <= set(range(1, longest + 1))


def test_the_same_seed_draws_the_same() -> None:
    one, same, other = (AcceptanceTable(2.4, 4, seed) for seed in (1, 1, 2))
    draws = [[table.draw(cursor) for cursor in range(200)] for table in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]


def test_longer_drafts_are_accepted_less_often() -> None:
    table = AcceptanceTable(2.4, 4, 0)
    share = Counter(table.draw(cursor) for cursor in range(TABLE))
    assert share[1] > share[2] > share[3]


def test_requests_start_apart() -> None:
    table = AcceptanceTable(2.4, 4, 0)
    assert len({table.start(number) for number in range(1000)}) == 1000


@pytest.mark.parametrize("mean", [0.9, 4.1])
def test_an_impossible_mean_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match="must lie between 1 and 4"):
        AcceptanceTable(mean, 4, 0)


def test_mean_of_other_chains() -> None:
    assert mean_for_chain(2.4, 4, 4) == pytest.approx(2.4)
    assert 1 < mean_for_chain(2.4, 4, 2) < 2 < mean_for_chain(2.4, 4, 3) < 2.4 < mean_for_chain(2.4, 4, 8) < 8
    assert mean_for_chain(4.0, 4, 2) == pytest.approx(2.0)

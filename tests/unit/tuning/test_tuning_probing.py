"""How much is probed, and when not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from evidence import START, at, auto, bucket, decided, fixed, fresh, missing

from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.model import Cell, Evidence, Probe
from sglang_operator.tuning.policy import TunerState, decide
from sglang_operator.tuning.samples import WINDOWS, Mode


def share(evidence: Evidence, *, threshold: int = 32, previous: int = 0, low: int = 1, high: int = 256) -> int:
    """The share that a tick sets when the threshold doesn't move."""
    state = TunerState(moves=(START,) * 2 * DEFAULTS.moves_an_hour)
    verdict = decide(
        auto(low=low, high=high), evidence, decided(threshold, probe_permille=previous), START, state=state
    )
    assert verdict.decision.batch_size == threshold
    return verdict.decision.probe_permille


def steps_of(label: str, *, on: float, off: float, off_seconds: float = 0.5) -> tuple[Cell, ...]:
    """A minute of drafting, and some probes without."""
    return (*at(label, on=on, seconds=25), *at(label, off=off, seconds=off_seconds))


CLEAR = steps_of("9-12", on=2000, off=1000)
UNCLEAR = steps_of("9-12", on=1000, off=1030, off_seconds=0.05)


def test_before_anything_was_decoded_the_first_steps_shall_tell() -> None:
    assert share(fresh()) == DEFAULTS.search_permille
    assert share(fresh(), low=8, high=8, threshold=8) == 0


def test_a_mode_that_was_never_seen_is_searched_for() -> None:
    assert share(fresh(at("9-12", on=2000))) == DEFAULTS.search_permille
    assert share(fresh(at("49-64", off=2000))) == DEFAULTS.search_permille


def test_what_is_not_told_apart_is_probed_more_than_what_is() -> None:
    assert share(fresh(CLEAR)) < share(fresh(UNCLEAR)) <= DEFAULTS.refine_permille


def test_never_nothing_for_good() -> None:
    assert share(fresh(CLEAR)) > 0


def test_the_dearer_the_other_mode_the_less_is_probed() -> None:
    shares = [share(fresh(at("49-64", off=1000, on=on)), previous=0) for on in (950, 700, 400, 150)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_searching_ends_when_the_budget_is_spent() -> None:
    dear = (*at("49-64", off=1000, seconds=25), *at("49-64", on=850, seconds=0.15, window=WINDOWS[3]))
    spent = Probe(mode=Mode.ON, bucket=bucket("49-64"), steps=500)
    assert 0 < share(fresh(dear, probes=(spent,))) < share(fresh(dear))


def test_nothing_is_probed_without_metrics_or_with_a_fixed_threshold() -> None:
    verdict = decide(auto(), missing(UNCLEAR), decided(32, probe_permille=9), START)
    assert verdict.decision.probe_permille == 0
    verdict = decide(fixed(32), fresh(UNCLEAR), decided(32, probe_permille=9), START)
    assert verdict.decision.probe_permille == 0


def test_nothing_is_probed_where_no_allowed_threshold_could_act_on_it() -> None:
    assert share(fresh(UNCLEAR), low=24) == 0
    assert share(fresh(steps_of("49-64", on=1000, off=1030)), threshold=32, high=32) == 0


def test_a_queue_ends_probing_unless_the_modes_were_never_compared() -> None:
    assert share(fresh(UNCLEAR, queued=3)) == 0
    assert share(fresh(at("9-12", on=2000), queued=3)) == DEFAULTS.search_permille
    assert share(fresh(UNCLEAR, queued=None)) > 0


def test_an_idle_service_keeps_its_share() -> None:
    assert share(fresh(at("9-12", on=2000, off=1000, window=WINDOWS[3])), previous=6) == 6


@pytest.mark.parametrize("previous", [1, 2, 4, 8, 16, 32])
def test_small_changes_of_the_share_are_not_worth_a_write(previous: int) -> None:
    new = share(fresh(CLEAR), previous=previous)
    assert new == previous or max(new, previous) > 2 * min(new, previous)


def test_more_servers_need_less_each() -> None:
    """What keeps evidence fresh is the bursts over all of them."""
    ten = (*at("9-12", on=2000, seconds=250), *at("9-12", off=1000, seconds=5))
    assert share(fresh(ten)) < share(fresh(CLEAR))


def test_a_changed_share_is_no_new_decision() -> None:
    before = decided(32)
    after = decide(auto(), fresh(UNCLEAR), before, START + timedelta(seconds=10)).decision
    assert after.probe_permille > 0
    assert (after.decided_at, after.message, after.source) == (before.decided_at, before.message, before.source)

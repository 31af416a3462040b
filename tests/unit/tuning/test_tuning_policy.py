"""Decisions as tables, and as whole sequences with the state carried along."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from evidence import START, at, auto, decided, fixed, fresh, missing

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdSource
from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.model import Cell, Evidence
from sglang_operator.tuning.policy import Outcome, TunerState, Verdict, decide, initial
from sglang_operator.tuning.samples import WINDOWS

SLOW_ON = at("49-64", on=4800, off=8000)
FAST_ON = at("9-12", on=2500, off=1700)


def moved(verdict: Verdict) -> Decision:
    assert verdict.outcome is Outcome.MOVED, verdict
    assert verdict.message == verdict.decision.message
    return verdict.decision


def held(verdict: Verdict) -> Outcome:
    assert verdict.outcome is not Outcome.MOVED, verdict
    assert verdict.message.endswith("."), verdict.message
    return verdict.outcome


@pytest.mark.parametrize(
    ("policy", "value"),
    [(auto(), 32), (auto(48), 48), (auto(high=16), 16), (auto(low=64), 64), (fixed(1), 1), (fixed(0), 0)],
)
def test_the_first_decision(policy: DisableThreshold, value: int) -> None:
    decision = initial(policy, START)
    assert (decision.batch_size, decision.source, decision.decided_at) == (value, ThresholdSource.SPEC, START)
    assert decision.probe_permille == 0


@pytest.mark.parametrize("evidence", [fresh(SLOW_ON), missing(SLOW_ON), fresh()])
def test_fixed_needs_no_evidence_and_no_dwell(evidence: Evidence) -> None:
    assert held(decide(fixed(8), evidence, decided(8, seconds_ago=0), START)) is Outcome.FIXED
    decision = moved(decide(fixed(8), evidence, decided(64, seconds_ago=0), START))
    assert (decision.batch_size, decision.source) == (8, ThresholdSource.SPEC)
    decision = moved(decide(fixed(0), evidence, decided(0, source=ThresholdSource.MEASURED), START))
    assert (decision.batch_size, decision.source) == (0, ThresholdSource.SPEC)


@pytest.mark.parametrize("evidence", [fresh(SLOW_ON), missing(SLOW_ON)])
@pytest.mark.parametrize(
    ("previous", "low", "high", "value"), [(300, 1, 256, 256), (4, 8, 64, 8), (0, 1, 64, 64), (64, 1, 1, 1)]
)
def test_bounds_hold_at_once(evidence: Evidence, previous: int, low: int, high: int, value: int) -> None:
    decision = moved(decide(auto(low=low, high=high), evidence, decided(previous, seconds_ago=0), START))
    assert (decision.batch_size, decision.source) == (value, ThresholdSource.SPEC)
    assert f"min {low} and max {high}" in decision.message


@pytest.mark.parametrize("reason", [Reason.STALE, Reason.NO_DATA, Reason.METRICS_UNREACHABLE, Reason.NOT_CONFIGURED])
def test_without_fresh_evidence_the_last_value_holds(reason: Reason) -> None:
    verdict = decide(auto(), missing(SLOW_ON, FAST_ON, reason=reason), decided(32), START)
    assert held(verdict) is Outcome.NO_FRESH_EVIDENCE
    assert verdict.message == "The newest sample is 90 s old."
    assert verdict.decision == decided(32)


def test_the_better_rate_wins_and_says_so() -> None:
    decision = moved(decide(auto(), fresh(SLOW_ON), decided(65), START))
    assert (decision.batch_size, decision.source, decision.decided_at) == (33, ThresholdSource.MEASURED, START)
    assert decision.message == (
        "At batch sizes 49-64: 4800 tokens/s drafting, 8000 tokens/s not drafting. 33 instead of 65 gains 40.0 % (± "
        "5.6) at the present load, 20.0 % (± 9.3) over all batch sizes of the last 15 minutes and next to them, 40.0 "
        "% (± 2.6) at the worst of them. The evidence is 2 s old."
    )
    assert decision.evidence is not None
    assert decision.evidence.manifest() == {
        "batchSizes": "49-64",
        "draftingTokensPerSecond": 4800,
        "notDraftingTokensPerSecond": 8000,
        "gainPercent": 40,
        "sampledAt": "2026-03-01T11:59:58Z",
    }


@pytest.mark.parametrize(
    ("cells", "previous", "value"),
    [
        (SLOW_ON, 256, 33),
        (FAST_ON, 1, 17),
        (SLOW_ON, 8, 8),
        (FAST_ON, 64, 64),
        (at("193-256", on=9000, off=5000, batch=220), 32, 256),
        (at("1", on=50, off=90), 32, 1),
        (at("257+", on=50, off=90), 256, 193),
    ],
)
def test_where_the_threshold_goes(cells: tuple[Cell, ...], previous: int, value: int) -> None:
    assert decide(auto(), fresh(cells), decided(previous), START).decision.batch_size == value


@pytest.mark.parametrize(("on", "off"), [(1000, 1019), (1019, 1000), (1000, 1000)])
def test_less_than_two_per_cent_is_not_worth_a_change(on: float, off: float) -> None:
    verdict = decide(auto(), fresh(at("49-64", on=on, off=off), at("25-32", on=on, off=off)), decided(49), START)
    assert held(verdict) is Outcome.BEST_KNOWN


def test_a_gain_must_be_sure() -> None:
    """The same difference, after much and after little measuring."""
    sure = at("49-64", on=900, off=1000, seconds=25)
    unsure = (*at("49-64", off=1000, seconds=25), *at("49-64", on=900, seconds=0.3))
    assert moved(decide(auto(), fresh(sure), decided(65), START)).batch_size == 49
    assert held(decide(auto(), fresh(unsure), decided(65), START)) is Outcome.UNSURE


def test_dwell_after_a_measured_change_and_not_in_an_emergency() -> None:
    measured, modest = ThresholdSource.MEASURED, at("49-64", on=900, off=1000, seconds=25)

    def after(cells: tuple[Cell, ...], seconds: float, source: ThresholdSource = measured) -> Outcome:
        return decide(auto(), fresh(cells), decided(65, source=source, seconds_ago=seconds), START).outcome

    assert after(modest, 29) is Outcome.DWELL
    assert after(modest, 30) is Outcome.MOVED
    assert after(modest, 1, ThresholdSource.SPEC) is Outcome.MOVED
    assert after(SLOW_ON, 1) is Outcome.MOVED, "a third is lost, surely"
    # A decision from the future, left by a clock that was wrong, must not hold for years.
    assert after(modest, -86_400) is Outcome.MOVED


def test_so_many_moves_an_hour_and_twice_as_many_in_emergencies() -> None:
    modest = at("49-64", on=900, off=1000, seconds=25)

    def after(cells: tuple[Cell, ...], moves: int, minutes_ago: float = 10) -> Outcome:
        state = TunerState(moves=(START - timedelta(minutes=minutes_ago),) * moves)
        return decide(auto(), fresh(cells), decided(65), START, state=state).outcome

    assert after(modest, DEFAULTS.moves_an_hour - 1) is Outcome.MOVED
    assert after(modest, DEFAULTS.moves_an_hour) is Outcome.TOO_MANY_MOVES
    assert after(modest, DEFAULTS.moves_an_hour, minutes_ago=61) is Outcome.MOVED
    assert after(SLOW_ON, DEFAULTS.moves_an_hour) is Outcome.MOVED
    assert after(SLOW_ON, 2 * DEFAULTS.moves_an_hour) is Outcome.TOO_MANY_MOVES


def test_an_idle_service_and_one_that_was_seen_in_one_mode_stay() -> None:
    assert held(decide(auto(), fresh(), decided(65), START)) is Outcome.IDLE
    assert held(decide(auto(), fresh(at("49-64", on=5000)), decided(65), START)) is Outcome.NOT_COMPARABLE


class Play:
    """A service whose ticks go on from each other."""

    def __init__(self, policy: DisableThreshold, first: int) -> None:
        self.policy, self.decision, self.state, self.now = policy, decided(first), TunerState(), START

    def tick(self, evidence: Evidence, *, seconds: float = 10) -> Verdict:
        self.now += timedelta(seconds=seconds)
        verdict = decide(self.policy, evidence, self.decision, self.now, state=self.state)
        self.decision, self.state = verdict.decision, verdict.state
        return verdict


def test_after_half_an_hour_without_numbers_the_declared_value_is_back_and_then_numbers_count_again() -> None:
    play = Play(auto(64), 40)
    for _ in range(180):
        assert held(play.tick(missing())) is Outcome.NO_FRESH_EVIDENCE
    decision = moved(play.tick(missing()))
    assert (decision.batch_size, decision.source) == (64, ThresholdSource.SPEC)
    assert "for 30 minutes there were no usable metrics" in decision.message
    assert held(play.tick(missing(), seconds=9999)) is Outcome.NO_FRESH_EVIDENCE
    assert moved(play.tick(fresh(SLOW_ON, now=play.now))).batch_size == 33


def test_one_good_answer_starts_the_half_hour_anew() -> None:
    play = Play(auto(64), 40)
    play.tick(missing())
    play.tick(missing(), seconds=1700)
    play.tick(fresh(now=play.now))
    play.tick(missing())
    assert held(play.tick(missing(), seconds=1700)) is Outcome.NO_FRESH_EVIDENCE
    assert play.decision.batch_size == 40


@pytest.mark.parametrize(
    ("policy", "evidence"), [(auto(), missing()), (auto(64), missing(has_pods=False))], ids=["undeclared", "no-pods"]
)
def test_without_a_declared_value_or_without_pods_the_last_value_holds_for_ever(
    policy: DisableThreshold, evidence: Evidence
) -> None:
    play = Play(policy, 40)
    for _ in range(5):
        assert held(play.tick(evidence, seconds=3000)) is Outcome.NO_FRESH_EVIDENCE
    assert play.decision.batch_size == 40


def test_two_crossings_are_told_in_the_message() -> None:
    cells = (at("2", on=60, off=100), at("9-12", on=900, off=500), at("97-128", on=1000, off=2000, seconds=60))
    verdict = decide(auto(), fresh(*cells), decided(256), START)
    assert "The better mode changes more than once (not drafting first, then at " in moved(verdict).message


def test_a_drift_is_remembered() -> None:
    """A minute after a jump of the yields, what lies before it still counts as stale."""
    before = [at("25-32", on=1600, off=1000, window=window) for window in WINDOWS[1:]]
    after = tuple(type(item)(**{**vars(item), "tokens": item.tokens * 0.6}) for item in at("25-32", on=1600))
    verdict = decide(auto(), fresh(after, *before), decided(32), START)
    assert verdict.state.yields_drifted_at == START - timedelta(seconds=30)
    later: datetime = START + timedelta(seconds=60)
    again = decide(auto(), fresh(after, now=later), verdict.decision, later, state=verdict.state)
    assert again.state.yields_drifted_at == START - timedelta(seconds=30)

"""Decisions as tables, and as whole sequences with the state carried along."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from evidence import START, at, auto, decided, fixed, fresh, missing

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdSource
from sglang_operator.tuning.exploration import Trial, TunerState, credit, ended, started
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import BucketEvidence, Evidence
from sglang_operator.tuning.policy import Hold, HoldReason, Move, Verdict, decide, initial
from sglang_operator.tuning.samples import Mode

LIMITS = Limits()
SLOW_ON = at("49-64", on=5000, off=8000)
FAST_ON = at("9-12", on=2500, off=1700)


def moved(verdict: Verdict) -> Decision:
    assert isinstance(verdict, Move), verdict
    return verdict.decision


def held(verdict: Verdict) -> HoldReason:
    assert isinstance(verdict, Hold), verdict
    assert verdict.message.endswith("."), verdict.message
    return verdict.reason


@pytest.mark.parametrize(
    ("policy", "value"),
    [(auto(), 32), (auto(48), 48), (auto(high=16), 16), (auto(low=64), 64), (fixed(1), 1), (fixed(0), 0)],
)
def test_the_first_decision(policy: DisableThreshold, value: int) -> None:
    decision = initial(policy, START)
    assert (decision.batch_size, decision.source, decision.decided_at) == (value, ThresholdSource.SPEC, START)


@pytest.mark.parametrize("evidence", [fresh(SLOW_ON), missing(SLOW_ON), fresh()])
def test_fixed_needs_no_evidence_and_no_dwell(evidence: Evidence) -> None:
    assert held(decide(fixed(8), evidence, decided(8, seconds_ago=0), START)) is HoldReason.FIXED
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
    assert held(verdict) is HoldReason.NO_FRESH_EVIDENCE
    assert isinstance(verdict, Hold)
    assert verdict.message == "The newest sample is 90 s old."


def test_the_better_rate_wins_and_says_so() -> None:
    decision = moved(decide(auto(), fresh(SLOW_ON), decided(65), START))
    assert (decision.batch_size, decision.source, decision.decided_at) == (49, ThresholdSource.MEASURED, START)
    assert decision.message == (
        "At batch sizes 49-64: 5000 tokens/s drafting, 8000 tokens/s not drafting. 49 instead of 65 gains 37.5 % at "
        "the present load. The evidence is 2 s old."
    )


@pytest.mark.parametrize(
    ("buckets", "previous", "value"),
    [
        ([SLOW_ON], 256, 49),
        ([FAST_ON], 1, 13),
        ([FAST_ON, SLOW_ON], 1, 13),
        ([FAST_ON, SLOW_ON], 256, 49),
        ([at("193-256", on=9, off=5)], 32, 256),
        ([at("1", on=5, off=9)], 32, 1),
        ([at("257+", on=5, off=9)], 256, 256),
    ],
)
def test_where_the_threshold_goes(buckets: list[BucketEvidence], previous: int, value: int) -> None:
    verdict = decide(auto(), fresh(*buckets), decided(previous), START)
    assert (moved(verdict).batch_size if isinstance(verdict, Move) else previous) == value


def test_beyond_the_last_bucket_the_bound_is_the_only_choice() -> None:
    evidence = fresh(at("257+", on=9, off=5))
    assert held(decide(auto(), evidence, decided(256), START)) is HoldReason.BEST_KNOWN
    assert moved(decide(auto(high=300), evidence, decided(256), START)).batch_size == 300


@pytest.mark.parametrize(("on", "off"), [(1000, 1019), (1019, 1000), (1000, 1000)])
def test_less_than_two_per_cent_is_not_worth_a_change(on: float, off: float) -> None:
    verdict = decide(auto(), fresh(at("49-64", on=on, off=off), at("25-32", on=on, off=off)), decided(49), START)
    assert held(verdict) is HoldReason.BEST_KNOWN


def test_dwell() -> None:
    evidence = fresh(SLOW_ON)
    assert held(decide(auto(), evidence, decided(65, seconds_ago=29), START)) is HoldReason.DWELL
    assert moved(decide(auto(), evidence, decided(65, seconds_ago=30), START)).batch_size == 49
    # A decision from the future, left by a clock that was wrong, must not hold for years.
    assert moved(decide(auto(), evidence, decided(65, seconds_ago=-86_400), START)).batch_size == 49


def test_an_idle_service_stays() -> None:
    idle = at("49-64", on=5000, off=8000, recent=0)
    assert held(decide(auto(), fresh(idle), decided(65), START)) is HoldReason.IDLE
    assert held(decide(auto(), fresh(), decided(65), START)) is HoldReason.IDLE


@pytest.mark.parametrize(
    ("label", "on", "off", "previous", "target", "words"),
    [
        ("9-12", 2500.0, None, 32, 9, "not drafting"),
        ("49-64", None, 8000.0, 32, 65, "drafting"),
        ("1", 300.0, None, 32, 1, "not drafting"),
        ("193-256", None, 9000.0, 32, 256, "drafting"),
        ("25-32", 2500.0, None, 32, 25, "not drafting"),
        ("25-32", None, 2500.0, 32, 33, "drafting"),
        ("257+", None, 9000.0, 32, 300, "drafting"),
        ("257+", 9000.0, None, 300, 257, "not drafting"),
    ],
)
def test_an_unknown_mode_is_tried_just_past_the_bucket(
    label: str, on: float | None, off: float | None, previous: int, target: int, words: str
) -> None:
    policy = auto(high=300 if label == "257+" else 256)
    verdict = decide(policy, fresh(at(label, on=on, off=off)), decided(previous), START)
    decision = moved(verdict)
    assert (decision.batch_size, decision.source) == (target, ThresholdSource.EXPLORATION)
    assert f"Trial at batch sizes {label}, {words}, for at most 120 s" in decision.message
    assert f"{on or off:.0f} tokens/s" in decision.message
    assert verdict.state.trial is not None
    assert (verdict.state.trial.base, verdict.state.trial.base_source) == (previous, ThresholdSource.SPEC)


@pytest.mark.parametrize(
    ("buckets", "previous", "policy"),
    [
        ([at("49-64", on=None, off=8000)], 32, auto(high=49)),  # the bounds forbid it
        ([at("9-12", on=2500, off=None)], 32, auto(low=13)),
        ([at("257+", on=None, off=9000)], 256, auto()),
        ([at("9-12", on=2500, off=None)], 5, auto()),  # it runs in the other mode already; evidence comes by itself
        ([at("9-12", on=2500, off=None, seconds=1)], 32, auto()),  # what it does now isn't known well yet
        ([at("9-12", on=None, off=None)], 32, auto()),
        ([at("9-12", on=2500, off=1700, recent=50), at("49-64", off=8000, recent=2)], 32, auto()),  # not busy enough
    ],
)
def test_no_trial(buckets: list[BucketEvidence], previous: int, policy: DisableThreshold) -> None:
    assert isinstance(decide(policy, fresh(*buckets), decided(previous), START), Hold)


def test_the_busiest_bucket_is_tried_first_and_a_known_one_is_passed_over() -> None:
    evidence = fresh(at("9-12", on=2500, recent=20), at("49-64", off=8000, recent=30))
    assert moved(decide(auto(), evidence, decided(32), START)).batch_size == 65
    evidence = fresh(at("9-12", on=2500, recent=20), at("49-64", on=5000, off=8000, recent=30))
    assert moved(decide(auto(), evidence, decided(32), START)).batch_size == 9


class Play:
    """Plays evidence tick by tick; each step is (seconds since the start, evidence)."""

    def __init__(self, policy: DisableThreshold, previous: Decision, limits: Limits = LIMITS) -> None:
        self.policy, self.previous, self.limits, self.state = policy, previous, limits, TunerState()

    def step(self, seconds: float, evidence: Evidence) -> Verdict:
        now = START + timedelta(seconds=seconds)
        verdict = decide(self.policy, evidence, self.previous, now, self.limits, self.state)
        self.state = verdict.state
        if isinstance(verdict, Move):
            self.previous = verdict.decision
        return verdict

    def values(self, steps: Sequence[tuple[float, Evidence]]) -> list[tuple[int, str]]:
        """Threshold and source after each step."""
        seen = []
        for seconds, evidence in steps:
            self.step(seconds, evidence)
            seen.append((self.previous.batch_size, self.previous.source.value))
        return seen


ONE_SIDED = fresh(at("49-64", off=8000))
BOTH = [fresh(at("49-64", on=on, off=8000)) for on in (9000, 8100, 5000)]


@pytest.mark.parametrize(
    ("known", "value", "word"),
    [(BOTH[0], 65, "Kept after a trial."), (BOTH[1], 32, "Back from a trial."), (BOTH[2], 32, "Back from a trial.")],
)
def test_a_trial_ends_with_a_judgement_from_where_it_began(known: Evidence, value: int, word: str) -> None:
    """Drafting at 49-64 proves 11 % better, 1 % better, or worse: kept, not worth it, back."""
    play = Play(auto(), decided(32))
    assert play.values([(0, ONE_SIDED), (10, ONE_SIDED), (20, known), (29, known), (30, known)]) == [
        (65, "Exploration"),
        (65, "Exploration"),
        (65, "Exploration"),
        (65, "Exploration"),
        (value, "Measured"),
    ]
    assert play.previous.message.startswith(word)
    assert "tokens/s drafting, 8000 tokens/s not drafting" in play.previous.message
    assert ("1.2 % at the present load, too little for a change." in play.previous.message) == (known is BOTH[1])
    assert held(play.step(70, known)) is HoldReason.BEST_KNOWN


def test_a_trial_without_result_ends_after_its_longest_time() -> None:
    play = Play(auto(), decided(32))
    play.step(0, ONE_SIDED)
    assert held(play.step(119, ONE_SIDED)) is HoldReason.TRIAL
    decision = moved(play.step(120, ONE_SIDED))
    assert (decision.batch_size, decision.source) == (32, ThresholdSource.SPEC)
    assert decision.message == ("Back from a trial: too little was measured at batch sizes 49-64 drafting in 120 s.")
    assert held(play.step(600, ONE_SIDED)) is HoldReason.NOT_COMPARABLE
    assert held(play.step(1799, ONE_SIDED)) is HoldReason.NOT_COMPARABLE
    assert moved(play.step(1800, ONE_SIDED)).batch_size == 65


def test_a_trial_whose_load_has_gone_ends_after_the_dwell_time() -> None:
    play = Play(auto(), decided(32))
    play.step(0, ONE_SIDED)
    gone = fresh(at("49-64", off=8000, recent=2), at("9-12", on=2500, off=1700, recent=58))
    assert held(play.step(29, gone)) is HoldReason.TRIAL
    decision = moved(play.step(30, gone))
    assert decision.batch_size == 32
    assert decision.message.endswith("The load moved on.")


def test_a_trial_ends_even_when_metrics_are_lost() -> None:
    """Held, since stale; but a trial is no value to hold for ever: back to what was in force before."""
    play = Play(auto(), decided(32, source=ThresholdSource.MEASURED))
    play.step(0, ONE_SIDED)
    assert held(play.step(60, missing(*BOTH[0].buckets))) is HoldReason.TRIAL
    decision = moved(play.step(120, missing(*BOTH[0].buckets)))
    assert (decision.batch_size, decision.source) == (32, ThresholdSource.MEASURED)
    assert held(play.step(500, missing())) is HoldReason.NO_FRESH_EVIDENCE


def test_a_trial_that_somebody_else_ended_is_forgotten() -> None:
    play = Play(auto(), decided(32))
    play.step(0, ONE_SIDED)
    play.policy = fixed(8)
    assert moved(play.step(10, ONE_SIDED)).batch_size == 8
    assert play.state.trial is None
    play.policy = auto()
    assert held(play.step(20, ONE_SIDED)) is HoldReason.DWELL
    assert play.previous.batch_size == 8


def test_new_bounds_during_a_trial() -> None:
    play = Play(auto(), decided(32))
    play.step(0, ONE_SIDED)
    play.policy = auto(high=16)
    assert moved(play.step(10, ONE_SIDED)).batch_size == 16
    assert play.state.trial is None


def test_a_restart_of_the_operator_during_a_trial_is_no_latch() -> None:
    """The state is lost, the trial's value is in force: measured rates decide, or the other mode is tried in turn."""
    play = Play(auto(), decided(65, source=ThresholdSource.EXPLORATION))
    assert moved(play.step(0, BOTH[2])).batch_size == 49
    play = Play(auto(), decided(65, source=ThresholdSource.MEASURED))
    assert moved(play.step(0, fresh(at("49-64", on=5000)))).batch_size == 49
    play = Play(auto(), decided(65, source=ThresholdSource.EXPLORATION))
    kept = moved(play.step(0, BOTH[0]))
    assert (kept.batch_size, kept.source) == (65, ThresholdSource.MEASURED)
    assert kept.message.startswith("Kept after a trial.")
    assert held(play.step(60, BOTH[0])) is HoldReason.BEST_KNOWN


def test_evidence_that_expired_is_gathered_again_after_the_interval() -> None:
    """On finds its way back: off looked better once, its rival's evidence expires, and it gets a new chance."""
    play = Play(auto(), decided(32))
    play.values([(0, ONE_SIDED), (30, BOTH[2])])
    assert play.previous.batch_size == 32
    play.values([(t, ONE_SIDED) for t in range(1000, 1800, 10)])
    assert play.previous.batch_size == 32
    play.values([(1800, ONE_SIDED), (1830, BOTH[0])])
    assert play.previous.batch_size == 65


def test_credit() -> None:
    limits = Limits(exploration_seconds=100, dwell_seconds=30, exploration_share=0.05)
    trial = Trial(
        bucket=at("1").bucket,
        mode=Mode.ON,
        threshold=2,
        base=1,
        base_source=ThresholdSource.SPEC,
        started_at=START,
    )
    assert credit(TunerState(), START, limits) == 300
    state = ended(started(TunerState(), trial), START + timedelta(seconds=250), limits)
    assert credit(state, START + timedelta(seconds=250), limits) == 50
    assert credit(state, START + timedelta(seconds=1250), limits) == 100
    assert credit(state, START + timedelta(days=2), limits) == 300
    assert credit(state, START - timedelta(days=300), limits) == 300
    assert ended(state, START, limits) is state


def test_no_trial_without_credit_for_a_whole_one() -> None:
    spent = TunerState(credit_seconds=119, credit_at=START)
    verdict = decide(auto(), ONE_SIDED, decided(32), START, LIMITS, spent)
    assert held(verdict) is HoldReason.NOT_COMPARABLE
    later = START + timedelta(seconds=20)
    assert moved(decide(auto(), ONE_SIDED, decided(32), later, LIMITS, spent)).batch_size == 65

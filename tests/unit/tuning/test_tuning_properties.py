"""What holds for any evidence in any order: bounds, dwell, no move on stale numbers, no flapping, no latch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from closed_loop import Loop, SteadyEngine
from evidence import START, auto, decided
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_sim.curves import Curve, affine
from engine_sim.curves import Mode as EngineMode
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode, ThresholdSource
from sglang_operator.tuning.exploration import TunerState
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import BucketEvidence, Evidence, Freshness, Rate
from sglang_operator.tuning.policy import Move, decide
from sglang_operator.tuning.samples import BUCKETS

REASONS = (Reason.FRESH, Reason.FRESH, Reason.FRESH, Reason.STALE, Reason.NO_DATA, Reason.METRICS_UNREACHABLE)
MESSAGE_LIMIT = 1024
UNHURRIED = settings(deadline=None, max_examples=60, derandomize=True)


@st.composite
def rates(draw: st.DrawFn) -> Rate | None:
    if draw(st.booleans()):
        return None
    seconds = draw(st.floats(0.01, 900))
    return Rate(tokens=draw(st.floats(0, 1e5)) * seconds, seconds=seconds)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Any evidence, with every bucket's rates and load independent of everything else."""
    labels = draw(st.lists(st.sampled_from(BUCKETS), unique=True, max_size=5))
    buckets = tuple(
        BucketEvidence(bucket=bucket, on=draw(rates()), off=draw(rates()), recent_seconds=draw(st.floats(0, 60)))
        for bucket in sorted(labels, key=lambda bucket: bucket.low)
    )
    freshness = Freshness(reason=draw(st.sampled_from(REASONS)), message="As drawn.", newest_sample_at=START)
    return Evidence(freshness=freshness, buckets=buckets)


@st.composite
def policies(draw: st.DrawFn) -> DisableThreshold:
    low, high = sorted((draw(st.integers(1, 300)), draw(st.integers(1, 300))))
    mode = draw(st.sampled_from((ThresholdMode.AUTO, ThresholdMode.AUTO, ThresholdMode.FIXED)))
    batch_size = draw(st.integers(low, high))
    return DisableThreshold(mode=mode, batch_size=batch_size, min=low, max=high)


@dataclass(frozen=True)
class Step:
    """Time passes, then a decision."""

    seconds: float
    evidence: Evidence


STEPS = st.lists(st.builds(Step, st.floats(1, 300), evidences()), min_size=1, max_size=25)


@UNHURRIED
@given(policies(), st.integers(0, 300), STEPS)
def test_any_sequence_keeps_the_rules(policy: DisableThreshold, first: int, steps: list[Step]) -> None:
    limits, now = Limits(), START
    previous, state = decided(first, seconds_ago=1000), TunerState()
    for step in steps:
        now += timedelta(seconds=step.seconds)
        verdict = decide(policy, step.evidence, previous, now, limits, state)
        assert verdict == decide(policy, step.evidence, previous, now, limits, state)
        trial, state = state.trial, verdict.state
        if isinstance(verdict, Move):
            after = verdict.decision
            assert after.decided_at == now
            assert 0 < len(after.message) <= MESSAGE_LIMIT
            if policy.mode is ThresholdMode.FIXED:
                assert after.batch_size == policy.batch_size
            else:
                assert policy.min <= after.batch_size <= policy.max
            spec = after.source is ThresholdSource.SPEC and trial is None
            assert spec or now - previous.decided_at >= timedelta(seconds=limits.dwell_seconds)
            if not step.evidence.freshness.fresh and not spec:
                assert trial is not None
                assert (after.batch_size, after.source) == (trial.base, trial.base_source)
            previous = after
        value = policy.batch_size if policy.mode is ThresholdMode.FIXED else previous.batch_size
        assert previous.batch_size == value
        if policy.mode is ThresholdMode.AUTO:
            assert policy.min <= previous.batch_size <= policy.max


@UNHURRIED
@given(policies(), st.integers(1, 300), evidences())
def test_on_the_same_evidence_for_hours_measurement_moves_a_threshold_once_at_most(
    policy: DisableThreshold, first: int, evidence: Evidence
) -> None:
    """Trials come and go meanwhile, and each ends where it began."""
    previous, state, standing, changes = decided(first), TunerState(), first, 0
    for tick in range(1, 400):
        verdict = decide(policy, evidence, previous, START + timedelta(seconds=10 * tick), Limits(), state)
        state = verdict.state
        if isinstance(verdict, Move):
            previous = verdict.decision
            if previous.source is not ThresholdSource.EXPLORATION:
                changes += previous.source is ThresholdSource.MEASURED and previous.batch_size != standing
                standing = previous.batch_size
    assert changes <= 1


@UNHURRIED
@given(policies(), evidences(), st.integers(1, 300))
def test_the_order_of_buckets_does_not_matter(policy: DisableThreshold, evidence: Evidence, first: int) -> None:
    backwards = replace(evidence, buckets=evidence.buckets[::-1])
    one = decide(policy, evidence, decided(first), START)
    other = decide(policy, backwards, decided(first), START)
    if isinstance(one, Move) and isinstance(other, Move) and one.decision.source is ThresholdSource.MEASURED:
        assert one.decision.batch_size == other.decision.batch_size
    assert type(one) is type(other)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Two affine modes, crossing anywhere or nowhere."""

    def line() -> tuple[float, float]:
        return draw(st.floats(0.004, 0.04)), draw(st.floats(1e-5, 1e-3))

    on, off = affine(*line()), affine(*line())
    return Curve("drawn", "drawn at random", on, off, off, draw(st.floats(1.2, 3.8)))


@settings(UNHURRIED, max_examples=25)
@given(curves(), st.integers(1, 256), st.integers(1, 200), st.integers(1, 200))
def test_no_history_is_a_latch(curve: Curve, first: int, before: int, batch: int) -> None:
    """Whatever ran before, an interval and two minutes into constant load the better mode is in force."""
    limits = Limits(exploration_interval_seconds=600)
    engine = SteadyEngine(curve, lambda now: before if now < 400 else batch)
    loop = Loop(engine, auto(first), limits, window_seconds=300)
    loop.run_until(400 + limits.exploration_interval_seconds + 300)
    on, off = (curve.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
    chosen = on if batch < engine.threshold else off
    trial = loop.previous.source is ThresholdSource.EXPLORATION
    assert trial or chosen >= 0.979 * max(on, off)

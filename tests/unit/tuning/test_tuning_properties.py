"""What holds for any evidence in any order: bounds, dwell, no move on stale numbers, no flapping, no latch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from closed_loop import Loop, SteadyEngine
from evidence import START, auto, cell, decided
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_operator.api.names import PROBE_MAX_PERMILLE
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode, ThresholdSource
from sglang_operator.simulate.curves.curve import Curve, affine
from sglang_operator.simulate.curves.curve import Mode as EngineMode
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import Cell, Evidence, Freshness, Probe
from sglang_operator.tuning.policy import Outcome, TunerState, decide
from sglang_operator.tuning.samples import BUCKETS, WINDOWS, Mode

REASONS = (Reason.FRESH, Reason.FRESH, Reason.FRESH, Reason.STALE, Reason.NO_DATA, Reason.METRICS_UNREACHABLE)
MESSAGE_LIMIT = 1024
UNHURRIED = settings(deadline=None, max_examples=60, derandomize=True)
MODES, LABELS = st.sampled_from(list(Mode)), st.sampled_from([bucket.label for bucket in BUCKETS])


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    return cell(
        draw(MODES),
        draw(LABELS),
        draw(st.floats(0.01, 1e5)),
        seconds=draw(st.floats(0.01, 900)),
        window=draw(st.sampled_from(WINDOWS)),
    )


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    label = draw(LABELS)
    where = next(bucket for bucket in BUCKETS if bucket.label == label)
    return Probe(mode=draw(MODES), bucket=where, steps=draw(st.floats(0.1, 1e6)))


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Any evidence, with all cells independent of each other."""
    freshness = Freshness(reason=draw(st.sampled_from(REASONS)), message="As drawn.", newest_sample_at=START)
    return Evidence(
        freshness=freshness,
        cells=tuple(draw(st.lists(cells(), max_size=8))),
        probes=tuple(draw(st.lists(probes(), max_size=2))),
        queued_requests=draw(st.none() | st.integers(0, 3)),
    )


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
    measured_at = []
    for step in steps:
        now += timedelta(seconds=step.seconds)
        verdict = decide(policy, step.evidence, previous, now, limits, state)
        assert verdict == decide(policy, step.evidence, previous, now, limits, state)
        after, state = verdict.decision, verdict.state
        assert 0 <= after.probe_permille <= PROBE_MAX_PERMILLE
        if policy.mode is ThresholdMode.FIXED:
            assert (after.batch_size, after.probe_permille) == (policy.batch_size, 0)
        else:
            assert policy.min <= after.batch_size <= policy.max
        if verdict.outcome is Outcome.MOVED:
            assert after.decided_at == now
            assert 0 < len(after.message) <= MESSAGE_LIMIT
        else:
            assert (after.batch_size, after.decided_at) == (previous.batch_size, previous.decided_at)
        if not step.evidence.freshness.fresh:
            assert after.probe_permille == 0
            assert verdict.outcome is not Outcome.MOVED or after.source is ThresholdSource.SPEC
        if verdict.outcome is Outcome.MOVED and after.source is ThresholdSource.MEASURED:
            measured_at.append(now)
        previous = after
    for moment in measured_at:
        within = [other for other in measured_at if moment <= other < moment + timedelta(hours=1)]
        assert len(within) <= 2 * limits.moves_an_hour


@UNHURRIED
@given(policies(), st.integers(1, 300), evidences())
def test_on_the_same_evidence_for_hours_a_threshold_moves_once_at_most(
    policy: DisableThreshold, first: int, evidence: Evidence
) -> None:
    previous, state, changes, shares = decided(first), TunerState(), 0, []
    for tick in range(1, 400):
        verdict = decide(policy, evidence, previous, START + timedelta(seconds=10 * tick), Limits(), state)
        state, previous = verdict.state, verdict.decision
        changes += verdict.outcome is Outcome.MOVED and previous.source is ThresholdSource.MEASURED
        shares.append(previous.probe_permille)
    assert changes <= 1
    assert len(set(shares[20:])) == 1, "a share that changes for no reason is a write for no reason"


@UNHURRIED
@given(policies(), evidences(), st.integers(1, 300))
def test_the_order_of_cells_does_not_matter(policy: DisableThreshold, evidence: Evidence, first: int) -> None:
    backwards = replace(evidence, cells=evidence.cells[::-1])
    one = decide(policy, evidence, decided(first), START)
    other = decide(policy, backwards, decided(first), START)
    assert one.outcome is other.outcome
    assert one.decision.batch_size == other.decision.batch_size


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
    """Whatever ran before, ten minutes into constant load the better mode is in force, or one that loses under 4 %."""
    engine = SteadyEngine(curve, lambda now: before if now < 300 else batch)
    loop = Loop(engine, auto(first))
    loop.run_until(900)
    on, off = (curve.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
    chosen = on if batch < engine.threshold else off
    assert chosen >= 0.96 * max(on, off)
    assert len(loop.moves) <= 4


@settings(UNHURRIED, max_examples=15)
@given(curves(), curves(), st.integers(1, 200), st.integers(1, 256))
def test_after_any_drift_the_better_mode_is_found_again(one: Curve, other: Curve, batch: int, first: int) -> None:
    engine = SteadyEngine(one, lambda _: batch)
    loop = Loop(engine, auto(first))
    loop.run_until(600)
    engine.curve = other
    loop.run_until(1500)
    on, off = (other.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
    chosen = on if batch < engine.threshold else off
    assert chosen >= 0.96 * max(on, off)

"""From evidence to a decision: the threshold and the probe share, without a clock, a client or memory of its own.

The order matters. What the spec says (`Fixed`, bounds) holds without any evidence. Without fresh evidence nothing else
moves, until the spec's own value is the better guess. Then the modes are compared at the present load, and a change
must be worth it, be sure, and not be one too many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode, ThresholdSource
from sglang_operator.tuning import drift, load, probing, rule, wording
from sglang_operator.tuning.comparison import Comparison, compare
from sglang_operator.tuning.estimate import Drifts, Estimator
from sglang_operator.tuning.limits import DEFAULTS, Limits
from sglang_operator.tuning.model import Evidence

__all__ = ["DEFAULT_BATCH_SIZE", "Limits", "Outcome", "TunerState", "Verdict", "decide", "initial"]

DEFAULT_BATCH_SIZE = 32
"""First threshold of `Auto` when the spec names none."""
_HOUR = timedelta(hours=1)


class Outcome(StrEnum):
    """What a verdict did to the threshold, or why it stays."""

    MOVED = "Moved"
    FIXED = "Fixed"
    NO_FRESH_EVIDENCE = "NoFreshEvidence"
    IDLE = "Idle"
    NOT_COMPARABLE = "NotComparable"
    BEST_KNOWN = "BestKnown"
    UNSURE = "Unsure"
    DWELL = "Dwell"
    TOO_MANY_MOVES = "TooManyMoves"


@dataclass(frozen=True, kw_only=True)
class TunerState:
    """What the tuner remembers of one service between two decisions. Losing it, by a restart, does no harm."""

    moves: tuple[datetime, ...] = ()
    """Measured changes within the last hour."""
    missing_since: datetime | None = None
    """Time of the first decision in a row without fresh evidence."""
    steps_drifted_at: datetime | None = None
    yields_drifted_at: datetime | None = None
    """Times of the last drifts; what is older is stale."""

    def drifts(self, now: datetime) -> Drifts:
        """Return the ages of the last drifts."""
        ages = [
            (now - moment).total_seconds() if moment else math.inf
            for moment in (self.steps_drifted_at, self.yields_drifted_at)
        ]
        return Drifts(*ages)

    def with_drifts(self, drifts: Drifts, now: datetime) -> TunerState:
        """Return the state with drifts of these ages."""
        steps, yields = (
            now - timedelta(seconds=age) if math.isfinite(age) else None for age in (drifts.steps, drifts.yields)
        )
        return replace(self, steps_drifted_at=steps, yields_drifted_at=yields)


EMPTY = TunerState()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision in force from now on, often the previous one, and the state to keep.

    `message` says why, in words; where the threshold moved it is the decision's own.
    """

    decision: Decision
    state: TunerState
    outcome: Outcome
    message: str


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One decision's inputs, handed around whole."""

    policy: DisableThreshold
    evidence: Evidence
    previous: Decision
    now: datetime
    limits: Limits
    state: TunerState

    def bounded(self, threshold: int) -> int:
        return rule.clamp(threshold, low=self.policy.min, high=self.policy.max)

    def since(self, moment: datetime) -> float:
        """Seconds since `moment`; a moment in the future, left by a clock that was wrong, counts as long ago."""
        passed = self.now - moment
        return passed.total_seconds() if passed >= timedelta() else float("inf")

    @property
    def dwells(self) -> bool:
        """Whether a measured change is too fresh for another."""
        measured = self.previous.source is ThresholdSource.MEASURED
        return measured and self.since(self.previous.decided_at) < self.limits.dwell_seconds

    def hold(self, outcome: Outcome, message: str, *, probe_permille: int | None = None) -> Verdict:
        decision = self.previous
        if probe_permille is not None and probe_permille != decision.probe_permille:
            decision = replace(decision, probe_permille=probe_permille)
        return Verdict(decision=decision, state=self.state, outcome=outcome, message=message)

    def move(self, decision: Decision, state: TunerState | None = None) -> Verdict:
        return Verdict(decision=decision, state=state or self.state, outcome=Outcome.MOVED, message=decision.message)

    def by_spec(self, batch_size: int, message: str) -> Verdict:
        """Move to a value that isn't measured; nothing is probed until the next tick says otherwise."""
        decision = Decision(batch_size=batch_size, source=ThresholdSource.SPEC, decided_at=self.now, message=message)
        return self.move(decision)


def initial(policy: DisableThreshold, now: datetime) -> Decision:
    """Return the first decision for a service that has none."""
    value = policy.batch_size if policy.batch_size is not None else DEFAULT_BATCH_SIZE
    if policy.mode is ThresholdMode.AUTO:
        value = rule.clamp(value, low=policy.min, high=policy.max)
    message = "The spec's value." if value == policy.batch_size else "The first value; nothing is measured yet."
    return Decision(batch_size=value, source=ThresholdSource.SPEC, decided_at=now, message=message)


def decide(
    policy: DisableThreshold,
    evidence: Evidence,
    previous: Decision,
    now: datetime,
    limits: Limits = DEFAULTS,
    state: TunerState = EMPTY,
) -> Verdict:
    """Decide one service's threshold and probe share.

    `previous` is the decision in force and `state` what the last verdict returned (an empty one after a restart).
    No verdict leaves the bounds. Measurements move the threshold at most `limits.moves_an_hour` times within any hour
    and never twice within `limits.dwell_seconds`; where the standing threshold is measured to be clearly worse, at
    once and twice as often.
    """
    fresh = evidence.freshness.fresh
    kept = replace(
        state,
        moves=tuple(moment for moment in state.moves if now - _HOUR < moment <= now),
        missing_since=None if fresh or not evidence.has_pods else state.missing_since or now,
    )
    case = _Case(policy=policy, evidence=evidence, previous=previous, now=now, limits=limits, state=kept)
    if policy.mode is ThresholdMode.FIXED:
        return _fixed(case)
    if previous.batch_size != case.bounded(previous.batch_size):
        value = previous.batch_size
        message = f"The last value, {rule.describe(value)}, is not between min {policy.min} and max {policy.max}."
        return case.by_spec(case.bounded(value), message)
    return _by_measurement(case) if fresh else _without_evidence(case)


def _fixed(case: _Case) -> Verdict:
    previous = case.previous
    declared = case.policy.batch_size if case.policy.batch_size is not None else previous.batch_size
    message = f"The spec fixes {rule.describe(declared)}."
    if previous.batch_size == declared and previous.source is ThresholdSource.SPEC:
        return case.hold(Outcome.FIXED, message, probe_permille=0)
    return case.by_spec(declared, message)


def _without_evidence(case: _Case) -> Verdict:
    """Hold, and after a while go back to what the spec declares, if it declares anything."""
    declared, missing_since = case.policy.batch_size, case.state.missing_since
    long_ago = missing_since is not None and case.since(missing_since) >= case.limits.fallback_seconds
    if declared is None or not long_ago or case.previous.batch_size == declared:
        return case.hold(Outcome.NO_FRESH_EVIDENCE, case.evidence.freshness.message, probe_permille=0)
    message = (
        f"Back to the spec's value: for {case.limits.fallback_seconds / 60:.0f} minutes there were no usable metrics. "
        f"{case.evidence.freshness.message}"
    )
    return case.by_spec(declared, message)


def _by_measurement(case: _Case) -> Verdict:
    drifts = drift.find(case.evidence.cells, case.state.drifts(case.now))
    case = replace(case, state=case.state.with_drifts(drifts, case.now))
    estimator = Estimator(case.evidence.cells, drifts, case.limits)
    present = load.present(case.evidence.cells, case.limits)
    comparison = compare(
        estimator,
        present,
        low=case.policy.min,
        high=case.policy.max,
        standing=case.previous.batch_size,
        seen=load.seen(case.evidence.cells) if present else (1, 1),
        deviations=case.limits.deviations,
    )

    def probe_permille(threshold: int) -> int:
        scene = probing.Scene(
            policy=case.policy,
            evidence=case.evidence,
            estimator=estimator,
            load=present,
            threshold=threshold,
            limits=case.limits,
        )
        return probing.share(scene, case.previous.probe_permille)

    outcome, message = _judge(case, comparison, idle=not present)
    if comparison is None or outcome is not Outcome.MOVED:
        return case.hold(outcome, message, probe_permille=probe_permille(case.previous.batch_size))
    decision = Decision(
        batch_size=comparison.best,
        source=ThresholdSource.MEASURED,
        decided_at=case.now,
        message=message,
        probe_permille=probe_permille(comparison.best),
        evidence=wording.rates(comparison, case.evidence),
    )
    return case.move(decision, replace(case.state, moves=(*case.state.moves, case.now)))


def _judge(case: _Case, comparison: Comparison | None, *, idle: bool) -> tuple[Outcome, str]:
    """Say whether to move, and why or why not."""
    limits, standing = case.limits, case.previous.batch_size
    if idle:
        return Outcome.IDLE, "Nothing was decoded lately."
    if comparison is None:
        return Outcome.NOT_COMPARABLE, "At the present batch sizes only one mode has been measured so far."
    message = wording.explanation(comparison, standing, case.evidence.age_seconds(case.now), limits)
    whole = [gain for gain in (comparison.load_gain, comparison.span_gain) if gain.value >= limits.min_gain]
    peak = [comparison.peak_gain] if comparison.peak_gain.value >= limits.min_peak_gain else []
    if not whole and not peak:
        return Outcome.BEST_KNOWN, message
    if max(gain.surely(limits.deviations) for gain in (*whole, *peak)) <= 0:
        return Outcome.UNSURE, message
    emergency = any(gain.surely(limits.deviations) >= limits.emergency_gain for gain in whole)
    moves = len(case.state.moves)
    if case.dwells and not emergency:
        return Outcome.DWELL, f"The last change is less than {limits.dwell_seconds:.0f} s ago. {message}"
    if moves >= limits.moves_an_hour * (2 if emergency else 1):
        return Outcome.TOO_MANY_MOVES, f"{moves} changes within an hour are enough. {message}"
    return Outcome.MOVED, message

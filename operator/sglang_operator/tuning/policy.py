"""From evidence to a threshold: the whole decision, without a clock, a client or memory of its own.

The order matters. What the spec says (`Fixed`, bounds) holds without any evidence. Without fresh evidence nothing else
moves, except that a trial still ends. Then measured rates decide (`tuning.comparison`), and where only one mode is
known, the other is tried (`tuning.exploration`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode, ThresholdSource
from sglang_operator.tuning import rule
from sglang_operator.tuning.comparison import Comparison, Pair, compare, known_modes
from sglang_operator.tuning.exploration import EMPTY, Trial, TunerState, busy, ended, next_trial, started
from sglang_operator.tuning.limits import DEFAULTS, Limits
from sglang_operator.tuning.model import BucketEvidence, Evidence
from sglang_operator.tuning.samples import Bucket, Mode

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "Hold",
    "HoldReason",
    "Limits",
    "Move",
    "TunerState",
    "Verdict",
    "decide",
    "initial",
]

DEFAULT_BATCH_SIZE = 32
"""First threshold of `Auto` when the spec names none."""


class HoldReason(StrEnum):
    """Why a threshold stays."""

    FIXED = "Fixed"
    NO_FRESH_EVIDENCE = "NoFreshEvidence"
    TRIAL = "Trial"
    DWELL = "Dwell"
    IDLE = "Idle"
    BEST_KNOWN = "BestKnown"
    NOT_COMPARABLE = "NotComparable"


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The threshold stays as it is."""

    reason: HoldReason
    message: str
    state: TunerState


@dataclass(frozen=True, kw_only=True)
class Move:
    """A new decision. Its value may equal the last one: then only its source changed, for example by a trial."""

    decision: Decision
    state: TunerState


Verdict = Hold | Move


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

    def at(self, bucket: Bucket) -> BucketEvidence:
        found = (item for item in self.evidence.buckets if item.bucket == bucket)
        return next(found, BucketEvidence(bucket=bucket))

    def compare(self, standing: int) -> Comparison | None:
        allowed = rule.candidates(low=self.policy.min, high=self.policy.max)
        return compare(self.evidence, allowed=allowed, standing=standing, limits=self.limits)

    def hold(self, reason: HoldReason, message: str) -> Hold:
        return Hold(reason=reason, message=message, state=self.state)

    def move(self, batch_size: int, source: ThresholdSource, message: str, state: TunerState | None = None) -> Move:
        """Move to a value, with any trial over unless another state is given."""
        decision = Decision(batch_size=batch_size, source=source, decided_at=self.now, message=message)
        return Move(decision=decision, state=state or ended(self.state, self.now, self.limits))

    @property
    def age(self) -> str:
        return f"The evidence is {self.evidence.age_seconds(self.now):.0f} s old."


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
    """Decide one service's threshold.

    `previous` is the decision in force and `state` what the last verdict returned (an empty one after a restart).
    Every verdict carries the state to keep. No verdict leaves the bounds, and nothing but the spec itself moves the
    threshold twice within the dwell time.
    """
    case = _Case(
        policy=policy,
        evidence=evidence,
        previous=previous,
        now=now,
        limits=limits,
        state=_own_trial(state, previous, now, limits),
    )
    if policy.mode is ThresholdMode.FIXED:
        return _fixed(case)
    if previous.batch_size != case.bounded(previous.batch_size):
        return _into_bounds(case)
    if case.state.trial:
        return _during_trial(case, case.state.trial)
    if not evidence.freshness.fresh:
        return case.hold(HoldReason.NO_FRESH_EVIDENCE, evidence.freshness.message)
    if case.since(previous.decided_at) < limits.dwell_seconds:
        value = rule.describe(previous.batch_size)
        return case.hold(HoldReason.DWELL, f"Changed to {value} less than {limits.dwell_seconds:.0f} s ago.")
    return _by_measurement(case)


def _own_trial(state: TunerState, previous: Decision, now: datetime, limits: Limits) -> TunerState:
    """Drop a trial that somebody else's decision has replaced meanwhile."""
    trial = state.trial
    if trial and (previous.source is not ThresholdSource.EXPLORATION or previous.batch_size != trial.threshold):
        return ended(state, now, limits)
    return state


def _fixed(case: _Case) -> Verdict:
    previous = case.previous
    declared = case.policy.batch_size if case.policy.batch_size is not None else previous.batch_size
    message = f"The spec fixes {rule.describe(declared)}."
    measured = previous.source in (ThresholdSource.MEASURED, ThresholdSource.EXPLORATION)
    if previous.batch_size == declared and not measured:
        return case.hold(HoldReason.FIXED, message)
    return case.move(declared, ThresholdSource.SPEC, message)


def _into_bounds(case: _Case) -> Move:
    policy, value = case.policy, case.previous.batch_size
    message = f"The last value, {rule.describe(value)}, is not between min {policy.min} and max {policy.max}."
    return case.move(case.bounded(value), ThresholdSource.SPEC, message)


def _by_measurement(case: _Case) -> Verdict:
    standing = case.previous.batch_size
    comparison = case.compare(standing)
    # A trial whose state was lost, by a restart, ends here like any other.
    on_trial = case.previous.source is ThresholdSource.EXPLORATION
    if comparison and (on_trial or comparison.gain >= case.limits.min_gain):
        return _judged(case, comparison, standing)
    trial = next_trial(case.policy, case.evidence, case.previous, case.state, case.now, case.limits)
    if trial:
        return _begin(case, trial)
    if not case.evidence.recent_seconds:
        return case.hold(HoldReason.IDLE, "Nothing was decoded lately.")
    if comparison is None:
        message = "At the present batch sizes only one mode has been measured, and no trial is due."
        return case.hold(HoldReason.NOT_COMPARABLE, message)
    message = f"{_rates(comparison.witness)} No other threshold gains enough over {rule.describe(standing)}."
    return case.hold(HoldReason.BEST_KNOWN, message)


def _begin(case: _Case, trial: Trial) -> Move:
    known = case.at(trial.bucket).rate(trial.mode.other)
    rate = f"{known.tokens_per_second:.0f} tokens/s {_words(trial.mode.other)}" if known else "nothing"
    message = (
        f"Trial at batch sizes {trial.bucket.label}, {_words(trial.mode)}, for at most "
        f"{case.limits.longest_trial_seconds:.0f} s: so far only {rate} is known there. "
        f"{rule.describe(trial.base)} was in force before. {case.age}"
    )
    return case.move(trial.threshold, ThresholdSource.EXPLORATION, message, started(case.state, trial))


def _during_trial(case: _Case, trial: Trial) -> Verdict:
    """Wait for the trial's evidence, then judge from where the trial came; give up after its longest time."""
    lasted, fresh, item = case.since(trial.started_at), case.evidence.freshness.fresh, case.at(trial.bucket)
    measured = fresh and len(known_modes(item, case.limits)) == len(Mode)
    left = fresh and not busy(item, case.evidence, case.limits)
    if lasted < (case.limits.dwell_seconds if measured or left else case.limits.longest_trial_seconds):
        message = (
            f"Measuring batch sizes {trial.bucket.label} {_words(trial.mode)} since {lasted:.0f} s; "
            f"{rule.describe(trial.base)} was in force before."
        )
        return case.hold(HoldReason.TRIAL, message if fresh else f"{message} {case.evidence.freshness.message}")
    base = case.bounded(trial.base)
    comparison = case.compare(base) if measured else None
    if comparison:
        return _judged(case, comparison, base)
    why = " The load moved on." if left else "" if fresh else f" {case.evidence.freshness.message}"
    message = (
        f"Back from a trial: too little was measured at batch sizes {trial.bucket.label} {_words(trial.mode)} in "
        f"{lasted:.0f} s.{why}"
    )
    return case.move(base, trial.base_source, message)


def _judged(case: _Case, comparison: Comparison, standing: int) -> Move:
    """Go where the comparison points, or to `standing` where the gain is too small; says so if this ends a trial."""
    enough = comparison.gain >= case.limits.min_gain
    target, current = comparison.best if enough else standing, case.previous.batch_size
    outcome = ""
    if case.previous.source is ThresholdSource.EXPLORATION:
        kind = "Kept after" if target == current else "Back from" if target == standing else "Found by"
        outcome = f"{kind} a trial. "
    gain = _gain(comparison, standing, enough)
    return case.move(target, ThresholdSource.MEASURED, f"{outcome}{_rates(comparison.witness)} {gain} {case.age}")


def _words(mode: Mode) -> str:
    return "drafting" if mode is Mode.ON else "not drafting"


def _rates(pair: Pair) -> str:
    return f"At batch sizes {pair.bucket.label}: {pair.on:.0f} tokens/s drafting, {pair.off:.0f} tokens/s not drafting."


def _gain(comparison: Comparison, standing: int, enough: bool) -> str:
    if comparison.best == standing:
        return f"No threshold does better than {rule.describe(standing)}."
    return (
        f"{rule.describe(comparison.best)} instead of {rule.describe(standing)} gains "
        f"{'up to ' if comparison.at_worst else ''}{100 * comparison.gain:.1f} % at the present load"
        f"{'' if enough else ', too little for a change'}."
    )

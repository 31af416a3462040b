"""Trials: with a threshold, each batch size is seen in one mode only, so the other mode must be tried now and then.

A trial moves the threshold just past the bucket that the service is busy with, for a limited time, and remembers
where it came from. Three limits keep its cost down: a bucket is tried at most once an interval, a trial has a longest
time, and all trials together draw on a credit of time. The credit starts full, at three of the longest trials, refills
at `exploration_share` of the time that passes, and must cover a whole trial before one starts. So in any period of L
seconds trials take at most `exploration_share` * L + 3 * `longest_trial_seconds`, plus what the caller is late to end
the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdSource
from sglang_operator.tuning import rule
from sglang_operator.tuning.comparison import known_modes
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import BucketEvidence, Evidence
from sglang_operator.tuning.samples import Bucket, Mode

CREDIT_IN_TRIALS = 3


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial: at `bucket`, `mode` is being measured with `threshold`; `base` was in force before."""

    bucket: Bucket
    mode: Mode
    threshold: int
    base: int
    base_source: ThresholdSource
    started_at: datetime


@dataclass(frozen=True, kw_only=True)
class TunerState:
    """What the tuner remembers of one service between two decisions. Losing it costs at most repeated trials."""

    trial: Trial | None = None
    tried: tuple[tuple[Bucket, datetime], ...] = ()
    """When each bucket's last trial started."""
    credit_seconds: float = 0.0
    credit_at: datetime | None = None
    """Time up to which the credit was counted; None: nothing was spent yet, the credit is full."""


EMPTY = TunerState()


def credit(state: TunerState, now: datetime, limits: Limits) -> float:
    """Seconds that trials may take now."""
    full = CREDIT_IN_TRIALS * limits.longest_trial_seconds
    if state.credit_at is None:
        return full
    # A clock that was put back must not stop the refill until it has caught up.
    passed = abs((now - state.credit_at).total_seconds())
    return min(full, state.credit_seconds + limits.exploration_share * passed)


def next_trial(
    policy: DisableThreshold, evidence: Evidence, previous: Decision, state: TunerState, now: datetime, limits: Limits
) -> Trial | None:
    """Return the trial that is worth most now, or None: the busiest bucket that lacks the mode it doesn't run in."""
    if credit(state, now, limits) < limits.longest_trial_seconds:
        return None
    tried = dict(state.tried)
    for item in _busiest(evidence, limits):
        last = tried.get(item.bucket)
        if last and 0 <= (now - last).total_seconds() < limits.exploration_interval_seconds:
            continue
        known = known_modes(item, limits)
        if len(known) != 1:
            continue
        mode = known[0].other
        target = _target(policy, item.bucket, mode, previous.batch_size)
        if target is not None:
            return Trial(
                bucket=item.bucket,
                mode=mode,
                threshold=target,
                base=previous.batch_size,
                base_source=previous.source,
                started_at=now,
            )
    return None


def busy(item: BucketEvidence, evidence: Evidence, limits: Limits) -> bool:
    """Whether a bucket holds enough of the present load to be worth a trial."""
    return item.recent_seconds > 0 and item.recent_seconds >= limits.exploration_busy_share * evidence.recent_seconds


def started(state: TunerState, trial: Trial) -> TunerState:
    """Return the state with a trial begun."""
    tried = dict(state.tried) | {trial.bucket: trial.started_at}
    return replace(state, trial=trial, tried=tuple(tried.items()))


def ended(state: TunerState, now: datetime, limits: Limits) -> TunerState:
    """Return the state with its trial over and paid for; unchanged when there is none."""
    if state.trial is None:
        return state
    spent = max(0.0, (now - state.trial.started_at).total_seconds())
    left = credit(state, state.trial.started_at, limits) - spent
    return replace(state, trial=None, credit_seconds=left, credit_at=now)


def _busiest(evidence: Evidence, limits: Limits) -> Iterable[BucketEvidence]:
    ranked = sorted(evidence.buckets, key=lambda item: item.recent_seconds, reverse=True)
    return [item for item in ranked if busy(item, evidence, limits)]


def _target(policy: DisableThreshold, bucket: Bucket, mode: Mode, threshold: int) -> int | None:
    """Return the threshold that puts more of `bucket` into `mode`; None where the bounds or the rule forbid it."""
    wanted = rule.above(bucket) if mode is Mode.ON else bucket.low
    target = rule.clamp(wanted, low=policy.min, high=policy.max)
    change = rule.drafting_share(target, bucket) - rule.drafting_share(threshold, bucket)
    return target if (change if mode is Mode.ON else -change) > 0 else None

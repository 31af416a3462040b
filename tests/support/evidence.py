"""Evidence and decisions in few words, for tests of the tuner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode, ThresholdSource
from sglang_operator.tuning.model import BucketEvidence, Evidence, Freshness, Rate
from sglang_operator.tuning.samples import BUCKETS, Bucket

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def bucket(label: str) -> Bucket:
    """The bucket with this label."""
    return next(item for item in BUCKETS if item.label == label)


def at(
    label: str,
    *,
    on: float | None = None,
    off: float | None = None,
    recent: float = 10,
    seconds: float = 20,
) -> BucketEvidence:
    """Rates (tokens/s) of a bucket, each measured for `seconds`; None: that mode was not seen."""

    def rate(tokens_per_second: float | None) -> Rate | None:
        return None if tokens_per_second is None else Rate(tokens=tokens_per_second * seconds, seconds=seconds)

    return BucketEvidence(bucket=bucket(label), on=rate(on), off=rate(off), recent_seconds=recent)


def fresh(*buckets: BucketEvidence, now: datetime = START) -> Evidence:
    """Evidence that is two seconds old."""
    newest = now - timedelta(seconds=2)
    freshness = Freshness(reason=Reason.FRESH, message="1 of 1 pods have fresh samples.", newest_sample_at=newest)
    return Evidence(freshness=freshness, buckets=buckets)


def missing(*buckets: BucketEvidence, reason: Reason = Reason.STALE) -> Evidence:
    """Evidence that may not be acted upon, whatever it holds."""
    return Evidence(freshness=Freshness(reason=reason, message="The newest sample is 90 s old."), buckets=buckets)


def auto(batch_size: int | None = None, *, low: int = 1, high: int = 256) -> DisableThreshold:
    """A policy that follows measurements."""
    return DisableThreshold(mode=ThresholdMode.AUTO, batch_size=batch_size, min=low, max=high)


def fixed(batch_size: int) -> DisableThreshold:
    """A policy with a declared value."""
    return DisableThreshold(mode=ThresholdMode.FIXED, batch_size=batch_size)


def decided(
    batch_size: int, *, source: ThresholdSource = ThresholdSource.SPEC, seconds_ago: float = 600, now: datetime = START
) -> Decision:
    """A decision in force."""
    return Decision(
        batch_size=batch_size, source=source, decided_at=now - timedelta(seconds=seconds_ago), message="Before."
    )

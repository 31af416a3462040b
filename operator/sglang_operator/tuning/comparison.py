"""Two measured rates at equal batch size: what each threshold gives away, and which gives away least.

Where both modes have been measured in the same bucket, a mode's loss there is 1 - rate / max(both rates). A
threshold's loss is the mean of its buckets' losses, weighted by the decode time of the recent window; buckets without
both rates count as no loss for any threshold, so that a gain is always a part of the whole present load.

Thresholds are compared at the starts of buckets, where each bucket runs in one mode. A value inside a bucket comes from
the spec. A bound there counts by the sizes on either side of it. A first value there counts as the worse mode, since
the whole load may sit on the wrong side of it, and a step to the bucket's edge costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sglang_operator.tuning import rule
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import BucketEvidence, Evidence, Rate
from sglang_operator.tuning.samples import Bucket, Mode


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both rates at one range of batch sizes, in tokens/s, and the decode time of the recent window there."""

    bucket: Bucket
    on: float
    off: float
    recent_seconds: float

    def loss(self, threshold: int) -> float:
        """Part of the better mode's rate that a threshold gives away here, 0 to 1."""
        drafting = rule.drafting_share(threshold, self.bucket)
        return 1 - (drafting * self.on + (1 - drafting) * self.off) / max(self.on, self.off)

    def worst_loss(self, threshold: int) -> float:
        """The same, with all of the load on the worse side of a threshold inside the bucket."""
        inside = 0 < rule.drafting_share(threshold, self.bucket) < 1
        return 1 - min(self.on, self.off) / max(self.on, self.off) if inside else self.loss(threshold)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The threshold that loses least at the present load."""

    best: int
    gain: float
    """What `best` saves over the threshold that stands, as a part of throughput."""
    at_worst: bool
    """Whether the gain takes all load to be on the worse side of a standing threshold inside a bucket."""
    witness: Pair
    """The bucket that speaks most for `best`."""


def enough(rate: Rate | None, limits: Limits) -> bool:
    """Whether a mode was seen for long enough."""
    return rate is not None and rate.seconds >= limits.min_evidence_seconds and rate.tokens > 0


def known_modes(item: BucketEvidence, limits: Limits) -> tuple[Mode, ...]:
    """Return the modes that were seen for long enough in a bucket."""
    return tuple(mode for mode in Mode if enough(item.rate(mode), limits))


def pairs(evidence: Evidence, limits: Limits) -> tuple[Pair, ...]:
    """Return the buckets in which both modes were seen for long enough."""
    return tuple(
        Pair(
            bucket=item.bucket,
            on=item.on.tokens_per_second,
            off=item.off.tokens_per_second,
            recent_seconds=item.recent_seconds,
        )
        for item in evidence.buckets
        if item.on and item.off and len(known_modes(item, limits)) == len(Mode)
    )


def compare(evidence: Evidence, *, allowed: Collection[int], standing: int, limits: Limits) -> Comparison | None:
    """Compare the allowed thresholds with the one that stands; None when nothing busy has both rates.

    Of equally good ones the nearest to `standing` is best.
    """
    busy = [pair for pair in pairs(evidence, limits) if pair.recent_seconds > 0]
    if not busy:
        return None

    at_worst = standing not in allowed

    def saved(pair: Pair, instead: int) -> float:
        lost = pair.worst_loss(standing) if at_worst else pair.loss(standing)
        return (lost - pair.loss(instead)) * pair.recent_seconds

    gains = {threshold: sum(saved(pair, threshold) for pair in busy) / evidence.recent_seconds for threshold in allowed}
    gains.setdefault(standing, 0.0)
    most = max(gains.values())
    best = rule.nearest((threshold for threshold, gain in gains.items() if gain >= most - 1e-9), standing)
    witness = max(busy, key=lambda pair: (saved(pair, best), pair.recent_seconds))
    return Comparison(best=best, gain=gains[best], at_worst=at_worst, witness=witness)

"""What is known about one service: rates of both modes by batch size, and how far the numbers can be trusted.

Only pods that the service owns now count, and of those only the ones that Prometheus has scraped lately: series
outlive their pods. Rates are pooled over pods (tokens and seconds are added up before dividing), so that a pod
counts by the time it was busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sglang_operator.api.reasons import Reason
from sglang_operator.tuning.samples import BUCKETS, Bucket, MetricsSnapshot, Mode, ModeSample, PodLoad

CLOCK_TOLERANCE = timedelta(seconds=5)
"""A sample may be this far ahead of the operator's clock before it counts as wrong."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Output tokens and the seconds they took, in one mode and bucket, over the evidence window."""

    tokens: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """The measured rate; `seconds` is above zero wherever a Rate exists."""
        return self.tokens / self.seconds


@dataclass(frozen=True, kw_only=True)
class BucketEvidence:
    """What is known at one range of batch sizes. A mode that was not seen is None, never zero."""

    bucket: Bucket
    on: Rate | None = None
    off: Rate | None = None
    recent_seconds: float = 0.0
    """Seconds of decoding in this bucket within the recent window, both modes together."""

    def rate(self, mode: Mode) -> Rate | None:
        """The rate of one mode, or None."""
        return self.on if mode is Mode.ON else self.off


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """Whether the numbers may be acted upon; `reason` is a reason of the condition `MetricsAvailable`."""

    reason: Reason
    message: str
    """A sentence without anything that ticks, since it ends up in the status."""
    newest_sample_at: datetime | None = None
    """Time of the newest good sample ever seen, in this pass or an earlier one."""

    @property
    def fresh(self) -> bool:
        """Whether the numbers may be acted upon."""
        return self.reason is Reason.FRESH


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that one decision may look at. Buckets are in order; empty ones are left out."""

    freshness: Freshness
    buckets: tuple[BucketEvidence, ...] = ()
    running_requests: float | None = None

    @property
    def recent_seconds(self) -> float:
        """Seconds of decoding within the recent window."""
        return sum(bucket.recent_seconds for bucket in self.buckets)

    def age_seconds(self, now: datetime) -> float:
        """Age of the newest sample; zero when it is from the future by clock tolerance."""
        newest = self.freshness.newest_sample_at
        return max(0.0, (now - newest).total_seconds()) if newest else 0.0


def unavailable(reason: str, message: str, *, last_sample_at: datetime | None = None) -> Evidence:
    """Evidence of a pass that got no answer; `reason` and `message` say why, as in `MetricsError`."""
    return Evidence(freshness=Freshness(reason=Reason(reason), message=message, newest_sample_at=last_sample_at))


def gather(
    snapshot: MetricsSnapshot,
    *,
    namespace: str,
    pods: Collection[str],
    now: datetime,
    max_age_seconds: int,
    last_sample_at: datetime | None = None,
) -> Evidence:
    """Pick one service's evidence from the answer for the whole cluster.

    `pods` are the names of the pods that the service owns now; `last_sample_at` is the newest good sample of earlier
    passes, kept so that a failure can say since when. A pod whose newest sample is older than `max_age_seconds`, or
    from the future, counts as missing with all it ever measured.
    """
    loads = [load for load in snapshot.loads if load.namespace == namespace and load.pod in pods]
    good = [load for load in loads if _age(load, now) <= max_age_seconds and load.sampled_at <= now + CLOCK_TOLERANCE]
    newest = max([load.sampled_at for load in good] + ([last_sample_at] if last_sample_at else []), default=None)
    if not good:
        reason, message = _why_not(snapshot, loads, pods, now, max_age_seconds)
        return Evidence(freshness=Freshness(reason=reason, message=message, newest_sample_at=newest))
    names = {load.pod for load in good}
    running = [load.running_requests for load in good if load.running_requests is not None]
    return Evidence(
        freshness=Freshness(reason=Reason.FRESH, message=_fresh_message(good, pods), newest_sample_at=newest),
        buckets=_pool(s for s in snapshot.modes if s.namespace == namespace and s.pod in names),
        running_requests=sum(running) if running else None,
    )


def _age(load: PodLoad, now: datetime) -> float:
    return (now - load.sampled_at).total_seconds()


def _pool(samples: Iterable[ModeSample]) -> tuple[BucketEvidence, ...]:
    tokens: defaultdict[tuple[Bucket, Mode], float] = defaultdict(float)
    seconds: defaultdict[tuple[Bucket, Mode], float] = defaultdict(float)
    recent: defaultdict[Bucket, float] = defaultdict(float)
    for sample in samples:
        tokens[sample.bucket, sample.mode] += sample.tokens
        seconds[sample.bucket, sample.mode] += sample.seconds
        recent[sample.bucket] += sample.recent_seconds

    def rate(bucket: Bucket, mode: Mode) -> Rate | None:
        measured = seconds.get((bucket, mode), 0.0)
        return Rate(tokens=tokens[bucket, mode], seconds=measured) if measured > 0 else None

    pooled = (
        BucketEvidence(
            bucket=bucket, on=rate(bucket, Mode.ON), off=rate(bucket, Mode.OFF), recent_seconds=recent.get(bucket, 0.0)
        )
        for bucket in BUCKETS
    )
    return tuple(b for b in pooled if b.on or b.off or b.recent_seconds)


def _fresh_message(good: list[PodLoad], pods: Collection[str]) -> str:
    series = ", ".join(sorted({load.series for load in good if load.series}))
    return f"{len(good)} of {len(pods)} pods have fresh samples{' of ' if series else ''}{series}."


def _why_not(
    snapshot: MetricsSnapshot, loads: list[PodLoad], pods: Collection[str], now: datetime, max_age_seconds: int
) -> tuple[Reason, str]:
    if loads:
        newest = max(loads, key=lambda load: (load.sampled_at, load.pod))
        if newest.sampled_at > now:
            return Reason.STALE, (
                f"The samples of pod {newest.pod} are stamped more than {CLOCK_TOLERANCE.total_seconds():.0f} s ahead "
                "of the operator's clock; set the clocks of the nodes."
            )
        return Reason.STALE, (
            f"The newest sample, of pod {newest.pod}, is from {newest.sampled_at:%Y-%m-%d %H:%M:%S} UTC, more than "
            f"{max_age_seconds} s ago; see why Prometheus no longer scrapes it."
        )
    if not pods:
        return Reason.NO_DATA, "There is no pod yet."
    cause = f"Prometheus has no sglang:spec_* series of the {len(pods)} pods"
    if snapshot.ignored.no_pod:
        return Reason.NO_DATA, (
            f"{cause}, but has some without the labels namespace and pod; set both by relabelling in its scrape "
            "configuration."
        )
    return Reason.NO_DATA, f"{cause}; see whether it scrapes them, and with which labels namespace and pod."

"""What is known about one service: what its steps cost and yielded in both modes, and how far to trust the numbers.

Only pods that the service owns now count, and of those only the ones that Prometheus has scraped lately: series
outlive their pods. Sums are pooled over pods before anything is divided, so that a pod counts by what it did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sglang_operator.api.reasons import Reason
from sglang_operator.tuning.samples import (
    SPARSE,
    WINDOWS,
    Bucket,
    MetricsSnapshot,
    Mode,
    ModeSample,
    PodLoad,
    ProbeSample,
    Window,
)

CLOCK_TOLERANCE = timedelta(seconds=5)
"""A sample may be this far ahead of the operator's clock before it counts as wrong."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Counted decode steps in one mode, bucket and window, over all pods; all sums are above zero."""

    mode: Mode
    bucket: Bucket
    window: Window
    steps: float
    requests: float
    tokens: float
    seconds: float
    seconds_squared: float | None = None

    @property
    def batch_size(self) -> float:
        """Mean batch size."""
        return self.requests / self.steps

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def tokens_per_request(self) -> float:
        """Mean output tokens of a request in a step: the accepted length while drafting, 1 otherwise."""
        return self.tokens / self.requests


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Steps that ran in `mode` only to measure it, over all pods, within `samples.PROBES`."""

    mode: Mode
    bucket: Bucket
    steps: float


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
    """Everything that one decision may look at."""

    freshness: Freshness
    has_pods: bool = True
    """Whether the service has pods at all: without any, missing numbers are nobody's fault."""
    cells: tuple[Cell, ...] = ()
    probes: tuple[Probe, ...] = ()
    running_requests: float | None = None
    queued_requests: float | None = None
    """Requests that waited all through the last minute; None where no server tells."""

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
        freshness = Freshness(reason=reason, message=message, newest_sample_at=newest)
        return Evidence(freshness=freshness, has_pods=bool(pods))
    names = {load.pod for load in good}
    return Evidence(
        freshness=Freshness(reason=Reason.FRESH, message=_fresh_message(good, pods), newest_sample_at=newest),
        cells=_pool([s for s in snapshot.modes if s.namespace == namespace and s.pod in names]),
        probes=_probes([s for s in snapshot.probes if s.namespace == namespace and s.pod in names]),
        running_requests=_total(load.running_requests for load in good),
        queued_requests=_total(load.queued_requests for load in good),
    )


def _age(load: PodLoad, now: datetime) -> float:
    return (now - load.sampled_at).total_seconds()


def _total(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _pool(samples: Collection[ModeSample]) -> tuple[Cell, ...]:
    dense = {sample.pod for sample in samples if sample.window == WINDOWS[0]}
    split = {(s.pod, s.mode, s.bucket) for s in samples if s.pod in dense and s.window in WINDOWS[:2]}
    pooled: dict[tuple[Mode, Bucket, Window], Cell] = {}
    for sample in samples:
        # The sparse window stands for the first two, never beside them: where scrapes are far apart, and for what ran
        # between the last scrape of one and the first of the other, such as a burst of probes.
        is_split = (sample.pod, sample.mode, sample.bucket) in split
        if sample.window in ((SPARSE,) if is_split else WINDOWS[:2]):
            continue
        key = (sample.mode, sample.bucket, sample.window)
        known = pooled.get(key)
        pooled[key] = _added(known, sample) if known else _cell(sample)
    return tuple(sorted(pooled.values(), key=lambda cell: (cell.bucket.low, cell.mode, cell.window.age_seconds)))


def _cell(sample: ModeSample) -> Cell:
    return Cell(
        mode=sample.mode,
        bucket=sample.bucket,
        window=sample.window,
        steps=sample.steps,
        requests=sample.requests,
        tokens=sample.tokens,
        seconds=sample.seconds,
        seconds_squared=sample.seconds_squared,
    )


def _added(known: Cell, sample: ModeSample) -> Cell:
    squares = (known.seconds_squared, sample.seconds_squared)
    return replace(
        known,
        steps=known.steps + sample.steps,
        requests=known.requests + sample.requests,
        tokens=known.tokens + sample.tokens,
        seconds=known.seconds + sample.seconds,
        seconds_squared=None if None in squares else _total(squares),
    )


def _probes(samples: Collection[ProbeSample]) -> tuple[Probe, ...]:
    steps: defaultdict[tuple[Mode, Bucket], float] = defaultdict(float)
    for sample in samples:
        steps[sample.mode, sample.bucket] += sample.steps
    return tuple(Probe(mode=mode, bucket=bucket, steps=number) for (mode, bucket), number in steps.items())


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

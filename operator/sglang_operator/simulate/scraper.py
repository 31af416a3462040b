"""What Prometheus makes of one pod's counters: samples at intervals, and increases within windows.

`increase` is Prometheus's own rule (promql/functions.go, extrapolatedRate): at least two samples; the difference of
the last and the first, plus what resets took away; extrapolated to the window's ends where a sample is near them, else
by half an interval, and never to before the counter was zero.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sglang_operator.simulate.counting import Count, Key
from sglang_operator.tuning.queries import QUEUE_SECONDS
from sglang_operator.tuning.samples import (
    PROBES,
    SPARSE,
    WINDOWS,
    MetricsSnapshot,
    Mode,
    ModeSample,
    PodLoad,
    ProbeSample,
    Window,
    parse_bucket,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Second 0 of every run."""
NAMESPACE, POD = "default", "server"


class _Sums(NamedTuple):
    """The values of one mode and bucket, in the order of `Count`."""

    steps: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    requests: float = 0.0
    seconds_squared: float = 0.0
    probe_steps: float = 0.0


_ZERO = _Sums()
_Increases = dict[Key, _Sums]


@dataclass(frozen=True, slots=True)
class _Sample:
    """One scrape: the counters as they were, what they would be without resets, and the gauges."""

    counters: dict[Key, _Sums]
    growth: dict[Key, _Sums]
    running: int
    queued: int


class Scraper:
    """Samples of one pod, which Prometheus stores under the name `pod`."""

    def __init__(self) -> None:
        self.pod = POD
        self._times: list[float] = []
        self._samples: list[_Sample] = []

    def scrape(self, now: float, counts: dict[Key, Count], *, running: int, queued: int) -> None:
        """Take one sample."""
        counters = {
            key: _Sums(
                count.steps, count.tokens, count.seconds, count.requests, count.seconds_squared, count.probe_steps
            )
            for key, count in counts.items()
        }
        last = self._samples[-1] if self._samples else _Sample({}, {}, 0, 0)
        growth = dict(last.growth)
        for key, sums in counters.items():
            before, grown = last.counters.get(key, _ZERO), growth.get(key, _ZERO)
            growth[key] = _Sums(
                *(
                    total + (value if value < old else value - old)
                    for total, value, old in zip(grown, sums, before, strict=True)
                )
            )
        self._times.append(now)
        self._samples.append(_Sample(counters, growth, running, queued))

    def snapshot(self, now: float) -> MetricsSnapshot:
        """What the operator's queries would return."""
        taken_at = START + timedelta(seconds=now)
        if not self._times:
            return MetricsSnapshot(taken_at=taken_at)
        waited = self._samples[bisect.bisect_right(self._times, now - QUEUE_SECONDS) :]
        load = PodLoad(
            namespace=NAMESPACE,
            pod=self.pod,
            sampled_at=START + timedelta(seconds=self._times[-1]),
            running_requests=self._samples[-1].running,
            queued_requests=min((sample.queued for sample in waited), default=None),
        )
        return MetricsSnapshot(
            taken_at=taken_at, modes=tuple(self._modes(now)), probes=tuple(self._probes(now)), loads=(load,)
        )

    def _modes(self, now: float) -> Iterator[ModeSample]:
        for window in (*WINDOWS, SPARSE):
            for (mode, label), sums in self._increases(now, window).items():
                bucket = parse_bucket(label)
                if bucket and min(sums.steps, sums.requests, sums.tokens, sums.seconds) > 0:
                    yield ModeSample(
                        namespace=NAMESPACE,
                        pod=self.pod,
                        mode=Mode(mode),
                        bucket=bucket,
                        window=window,
                        steps=sums.steps,
                        requests=sums.requests,
                        tokens=sums.tokens,
                        seconds=sums.seconds,
                        seconds_squared=sums.seconds_squared,
                    )

    def _probes(self, now: float) -> Iterator[ProbeSample]:
        for (mode, label), sums in self._increases(now, PROBES).items():
            bucket = parse_bucket(label)
            if bucket and sums.probe_steps > 0:
                yield ProbeSample(
                    namespace=NAMESPACE, pod=self.pod, mode=Mode(mode), bucket=bucket, steps=sums.probe_steps
                )

    def _increases(self, now: float, window: Window) -> _Increases:
        """The increase of every counter within a window; those that didn't grow are left out."""
        end = now - window.age_seconds
        start = end - window.length_seconds
        first, last = bisect.bisect_right(self._times, start), bisect.bisect_right(self._times, end) - 1
        if last <= first:
            return {}
        left, right = self._times[first] - start, end - self._times[last]
        sampled = self._times[last] - self._times[first]
        interval = sampled / (last - first)
        near = 1.1 * interval
        left, right = (each if each < near else interval / 2 for each in (left, right))
        begin, final = self._samples[first], self._samples[last]
        increases: _Increases = {}
        for key, grown in final.growth.items():
            base = begin.growth.get(key, _ZERO)
            if grown.steps > base.steps or grown.probe_steps > base.probe_steps:
                values = zip(begin.counters.get(key, _ZERO), base, grown, strict=True)
                increases[key] = _Sums(*(_extrapolated(value, b - a, sampled, left, right) for value, a, b in values))
        return increases


def _extrapolated(first: float, grown: float, sampled: float, left: float, right: float) -> float:
    """Stretch what grew within `sampled` seconds by those `left` and `right`; `first` is the first sample's value."""
    if grown <= 0:
        return 0.0
    return grown * (sampled + min(left, sampled * first / grown) + right) / sampled

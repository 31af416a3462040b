"""Which decode steps are counted, and how they are added up and published.

Counted are back-to-back decode steps only: the time from one decode result to the next is the duration of that step
when nothing else ran in between. Steps next to a prefill, an idle turn or a stall of the scheduler are left out, so
tokens / seconds is a rate of pure decoding. Results come one scheduler turn after their launch when the schedule
overlaps, so launches are remembered until their result arrives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from importlib import import_module

from .ports import Collector, MetricClass

STALL_SECONDS = 1.0
"""No scheduler turn lasts this long; whatever did (a pause, a weight update) was no decode step."""

PUBLISH_SECONDS = 0.5
"""Sums go to Prometheus this often, not at each step: its counters cost more than the bookkeeping."""

_BUCKET_ENDS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
BUCKETS = (
    "1", "2", "3-4", "5-6", "7-8", "9-12", "13-16", "17-24", "25-32", "33-48", "49-64", "65-96", "97-128",
    "129-192", "193-256", "257+",
)  # fmt: skip


def bucket(batch_size: int) -> str:
    """Return the label of the bucket that a batch size falls into."""
    return BUCKETS[bisect_left(_BUCKET_ENDS, batch_size)]


class StepClock:
    """Turns launches and results, in the order they happen, into durations of back-to-back decode steps.

    Times are seconds of a monotonic clock, given by the caller.
    """

    def __init__(self) -> None:
        self._launched: deque[int] = deque(maxlen=8)  # batch size of a decode step, 0 for anything else
        self._last_result: float | None = None
        self._turned = False
        self._ahead = False
        self._alone = False

    def launch(self, is_decode: bool, now: float, batch_size: int = 1) -> None:
        """Note that a forward pass begins: a decode step, or anything else, which breaks the chain."""
        if not is_decode:
            self._launched.append(0)
            self._last_result = None
            return
        self._launched.append(batch_size)
        if not self._turned:
            self._turned = True
            if self._last_result is not None and now - self._last_result > STALL_SECONDS:
                self._last_result = None

    def idle(self) -> None:
        """Note a scheduler turn without a batch."""
        self._launched.clear()
        self._ahead = False
        self._last_result = None

    def result(self, now: float) -> float | None:
        """Note the result of the oldest decode step; return its seconds if it was back-to-back, else None."""
        launched = self._launched
        directly = bool(launched) and launched.popleft() > 0
        if not directly:
            while launched and not launched.popleft():
                pass
        # Where the schedule overlaps, a step is launched before the result of the last one: one that was not came
        # after a turn without a batch, and nothing launched now means such a turn. A prefill launched by now shares
        # the device with this step.
        overlaps = bool(launched)
        started = self._last_result if directly and (self._ahead or not overlaps) else None
        broken = 0 in launched or (self._ahead and not overlaps)
        self._last_result = None if broken else now
        self._alone = not self._ahead and not overlaps
        self._ahead = overlaps
        self._turned = False
        return None if started is None else now - started

    def kept_its_batch(self, batch_size: int) -> bool:
        """Tell whether every request of the step whose result came last, of this size, was still running.

        Without overlap the scheduler takes ended requests out before it launches a step. With overlap they are
        missing from the step launched behind this one. False means that it isn't known.
        """
        return self._alone or (bool(self._launched) and self._launched[-1] == batch_size)


class StepSums:
    """Steps, tokens and seconds by (mode, bucket) since the last publication."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[float]] = {}

    def add(self, mode: str, batch_size: int, tokens: int, seconds: float) -> None:
        """Add one step of `tokens` output tokens over all requests of the batch."""
        key = (mode, bucket(batch_size))
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = [1, tokens, seconds]
        else:
            sums[0] += 1
            sums[1] += tokens
            sums[2] += seconds

    def take(self) -> dict[tuple[str, str], list[float]]:
        """Return the sums and start again from nothing."""
        taken, self._sums = self._sums, {}
        return taken


class Publisher:
    """The Prometheus series, registered as SGLang registers its own, with SGLang's labels.

    `collector` is SGLang's SchedulerMetricsCollector. Counters have no metric type of their own in a multiprocess
    directory; they add up over processes, and only the rank that reports makes this object.
    """

    def __init__(self, collector: Collector) -> None:
        # Imported late: its directory for many processes must be in the environment by then.
        client = import_module("prometheus_client")
        counter: MetricClass = getattr(collector, "_counter_cls", None) or client.Counter
        gauge: MetricClass = getattr(collector, "_gauge_cls", None) or client.Gauge
        self._labels = dict(collector.labels)
        names = list(self._labels)
        by_step = [*names, "mode", "batch_size"]
        self._steps = counter(
            name="sglang:spec_mode_steps_total",
            documentation="Back-to-back decode steps, by drafting on or off and decode batch size.",
            labelnames=by_step,
        )
        self._tokens = counter(
            name="sglang:spec_mode_tokens_total",
            documentation="Output tokens of the steps in sglang:spec_mode_steps_total.",
            labelnames=by_step,
        )
        self._seconds = counter(
            name="sglang:spec_mode_seconds_total",
            documentation="Seconds of the steps in sglang:spec_mode_steps_total.",
            labelnames=by_step,
        )
        self._transitions = counter(
            name="sglang:spec_mode_transitions_total",
            documentation="Changes between drafting and not drafting, by what it changed to.",
            labelnames=[*names, "to"],
        )
        self._threshold = gauge(
            name="sglang:spec_disable_batch_threshold",
            documentation="Batch size from which no drafts are made; 0 = always speculate.",
            labelnames=names,
            multiprocess_mode="mostrecent",
        )
        self._off_path = gauge(
            name="sglang:spec_off_path",
            documentation="How a decode step without drafting is run.",
            labelnames=[*names, "path"],
            multiprocess_mode="mostrecent",
        )
        self._published_threshold: int | None = None

    def off_path(self, path: str) -> None:
        """Say how steps without drafting are run."""
        self._off_path.labels(**self._labels, path=path).set(1)

    def threshold(self, value: int) -> None:
        """Publish the threshold in force, if it changed."""
        if value != self._published_threshold:
            self._threshold.labels(**self._labels).set(value)
            self._published_threshold = value

    def transition(self, to: str) -> None:
        """Count one change of mode."""
        self._transitions.labels(**self._labels, to=to).inc()

    def steps(self, sums: Mapping[tuple[str, str], list[float]]) -> None:
        """Add sums to the counters."""
        for (mode, batch_size), (steps, tokens, seconds) in sums.items():
            labels = {**self._labels, "mode": mode, "batch_size": batch_size}
            self._steps.labels(**labels).inc(steps)
            self._tokens.labels(**labels).inc(tokens)
            self._seconds.labels(**labels).inc(seconds)

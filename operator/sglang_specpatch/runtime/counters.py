"""Which decode steps are counted, and how they are added up and published.

Counted are back-to-back decode steps only: the time from one decode result to the next is the duration of that step
when nothing else ran in between. Steps next to a prefill, an idle turn or a stall of the scheduler are left out, so
tokens / seconds is a rate of pure decoding. Results come one scheduler turn after their launch when the schedule
overlaps, so launches are remembered until their result arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from .buckets import BUCKETS, bucket_index
from .ports import Collector, Metric, MetricClass

STALL_SECONDS = 1.0
"""No scheduler turn lasts this long; whatever did (a pause, a weight update) was no decode step."""

PUBLISH_SECONDS = 0.5
"""Sums go to Prometheus this often, not at each step: its counters cost more than the bookkeeping."""

ON, OFF = "on", "off"
_MODES = (ON, OFF)


class StepClock:
    """Turns launches and results, in the order they happen, into durations of back-to-back decode steps.

    Times are seconds of a monotonic clock, given by the caller. `decodes_behind` is the number of decode steps that
    were launched behind the one whose result came last.
    """

    def __init__(self) -> None:
        self._launched: deque[int] = deque(maxlen=8)  # batch size of a decode step, 0 for anything else
        self._last_result: float | None = None
        self._turned = False
        self._ahead = False
        self._alone = False
        self.decodes_behind = 0

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
        others = launched.count(0)
        self.decodes_behind = len(launched) - others
        broken = others > 0 or (self._ahead and not overlaps)
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


class Sums(NamedTuple):
    """Sums over the steps of one mode and bucket; all but `probes` are over the counted steps alone."""

    steps: int
    tokens: int
    seconds: float
    requests: int
    seconds_squared: float
    probes: int


class StepSums:
    """What has been added up since the last publication."""

    def __init__(self) -> None:
        self._rows: dict[str, list[list[float]]] = {mode: [[0] * len(Sums._fields) for _ in BUCKETS] for mode in _MODES}

    def add(self, mode: str, batch_size: int, tokens: int, seconds: float) -> None:
        """Add one counted step of `tokens` output tokens over all `batch_size` requests."""
        row = self._rows[mode][bucket_index(batch_size)]
        row[0] += 1
        row[1] += tokens
        row[2] += seconds
        row[3] += batch_size
        row[4] += seconds * seconds

    def add_probe(self, mode: str, batch_size: int) -> None:
        """Add one probe step, counted or not."""
        self._rows[mode][bucket_index(batch_size)][5] += 1

    def take(self) -> dict[tuple[str, str], Sums]:
        """Return the sums by (mode, bucket label), empty ones left out, and start again from nothing."""
        taken: dict[tuple[str, str], Sums] = {}
        for mode, rows in self._rows.items():
            for label, row in zip(BUCKETS, rows, strict=True):
                if any(row):
                    taken[mode, label] = Sums._make(row)
                    row[:] = [0] * len(row)
        return taken


_BY_STEP = (
    ("sglang:spec_mode_steps_total", "Back-to-back decode steps, by drafting on or off and decode batch size."),
    ("sglang:spec_mode_tokens_total", "Output tokens of the steps in sglang:spec_mode_steps_total."),
    ("sglang:spec_mode_seconds_total", "Seconds of the steps in sglang:spec_mode_steps_total."),
    ("sglang:spec_mode_requests_total", "Batch sizes, added up, of the steps in sglang:spec_mode_steps_total."),
    ("sglang:spec_mode_seconds_squared_total", "Squares of the seconds of each of these steps, added up."),
    (
        "sglang:spec_probe_steps_total",
        "Decode steps that ran in the other mode than the threshold says, to measure it.",
    ),
)
"""The counters of `Sums`, in its order."""


class Publisher:
    """The Prometheus series, registered as SGLang registers its own, with SGLang's labels.

    `collector` is SGLang's SchedulerMetricsCollector. Counters have no metric type of their own in a multiprocess
    directory; they add up over processes, and only the rank that reports makes this object. Every counter is there
    with 0 from the start: what happens before a first scrape would be lost otherwise.
    """

    def __init__(self, collector: Collector) -> None:
        # Imported late: its directory for many processes must be in the environment by then.
        client = import_module("prometheus_client")
        self._counter: MetricClass = getattr(collector, "_counter_cls", None) or client.Counter
        self._gauge: MetricClass = getattr(collector, "_gauge_cls", None) or client.Gauge
        self._labels = dict(collector.labels)
        self._by_step = self._step_counters()
        transitions = self._counter(
            name="sglang:spec_mode_transitions_total",
            documentation="Changes between drafting and not drafting, by what it changed to; without those of probes.",
            labelnames=[*self._labels, "to"],
        )
        self._transitions = {mode: transitions.labels(**self._labels, to=mode) for mode in _MODES}
        self._threshold = self._setting(
            "sglang:spec_disable_batch_threshold",
            "Batch size from which no drafts are made; 0 = always speculate.",
        )
        self._probe_permille = self._setting(
            "sglang:spec_probe_permille", "Share of decode steps that run in the other mode, in thousandths; 0 = none."
        )
        self._off_path = self._gauge(
            name="sglang:spec_off_path",
            documentation="How a decode step without drafting is run.",
            labelnames=[*self._labels, "path"],
            multiprocess_mode="mostrecent",
        )
        self._published: tuple[int, int] | None = None

    def off_path(self, path: str) -> None:
        """Say how steps without drafting are run."""
        self._off_path.labels(**self._labels, path=path).set(1)

    def settings(self, threshold: int, probe_permille: int) -> None:
        """Publish the settings in force, if they changed."""
        if (threshold, probe_permille) != self._published:
            self._threshold.set(threshold)
            self._probe_permille.set(probe_permille)
            self._published = (threshold, probe_permille)

    def transition(self, to: str) -> None:
        """Count one change of mode."""
        self._transitions[to].inc()

    def steps(self, sums: Mapping[tuple[str, str], Sums]) -> None:
        """Add sums to the counters."""
        for key, amounts in sums.items():
            for counter, amount in zip(self._by_step[key], amounts, strict=True):
                counter.inc(amount)

    def _step_counters(self) -> dict[tuple[str, str], tuple[Metric, ...]]:
        names = [*self._labels, "mode", "batch_size"]
        counters = [self._counter(name=name, documentation=text, labelnames=names) for name, text in _BY_STEP]
        return {
            (mode, label): tuple(counter.labels(**self._labels, mode=mode, batch_size=label) for counter in counters)
            for mode in _MODES
            for label in BUCKETS
        }

    def _setting(self, name: str, documentation: str) -> Metric:
        gauge = self._gauge(
            name=name, documentation=documentation, labelnames=list(self._labels), multiprocess_mode="mostrecent"
        )
        return gauge.labels(**self._labels)

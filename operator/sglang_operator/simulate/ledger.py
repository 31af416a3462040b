"""What a run cost, against the better mode at every step.

**Regret at equal work.** A span of decoding brought some tokens at some batch size. The better of the two modes would
have brought the same tokens, at the same batch size and under the same conditions, in no more time:

    better seconds = seconds × rate / max(on rate, off rate)
    regret         = 1 - sum of better seconds / sum of seconds

So work is equal by construction, also in an open loop, where throughput is given by the arrivals and a slow server pays
in time and in a larger batch. Prefill and idle time are in neither sum. It is a mean over decode time, and what a
larger batch costs in turn is not in it; the tokens and the tokens per second of whole runs are kept as a cross-check.

**After settling** counts only spans in a bucket of batch sizes that first held load a stated time ago, since the start
or the last drift: before that, nothing can be known there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from sglang_operator.simulate.costs import LARGEST_BATCH
from sglang_specpatch.runtime.buckets import bucket

_BUCKETS = [bucket(max(1, size)) for size in range(LARGEST_BATCH + 1)]


class Span(NamedTuple):
    """Equal decode steps in a row; rates in output tokens/s."""

    begin: float
    batch: int
    steps: int
    seconds: float
    tokens: float
    drafting: bool
    probing: bool
    rate: float
    on_rate: float
    off_rate: float


class Mark(NamedTuple):
    """The sums up to a moment."""

    at: float
    decode_seconds: float
    better_seconds: float
    settled_seconds: float
    settled_better_seconds: float
    tokens: float
    on_tokens: float
    """Tokens that the same decode time would have brought with drafting always on, at the same batch sizes."""
    off_tokens: float
    best_tokens: float
    probe_cost_seconds: float
    requests: float
    """Batch size times decode seconds."""


@dataclass
class Ledger:
    """Sums over the spans of one run."""

    settling_seconds: float = math.inf

    def __post_init__(self) -> None:
        self.marks: list[Mark] = []
        self.seconds_by_batch: defaultdict[int, float] = defaultdict(float)
        self.rates_by_batch: dict[int, tuple[float, float]] = {}
        """On and off, in tokens/s, under the conditions in which a batch size was seen last."""
        self.news: list[float] = []
        """When a bucket of batch sizes first held load since the start or the last drift."""
        self._sums = [0.0] * (len(Mark._fields) - 1)
        self._first: dict[str, float] = {}

    @property
    def output_tokens(self) -> float:
        """Tokens decoded so far."""
        return self._sums[4]

    def drift(self) -> None:
        """Note that what was known is no longer true."""
        self._first = {}

    def add(self, span: Span) -> None:
        """Add a span."""
        seconds, best = span.seconds, max(span.on_rate, span.off_rate)
        better = seconds * span.rate / best
        sums = self._sums
        sums[0] += seconds
        sums[1] += better
        if self._settled(span):
            sums[2] += seconds
            sums[3] += better
        sums[4] += span.tokens
        sums[5] += seconds * span.on_rate
        sums[6] += seconds * span.off_rate
        sums[7] += seconds * best
        if span.probing:
            instead = span.off_rate if span.drafting else span.on_rate
            sums[8] += seconds * max(0.0, 1 - span.rate / instead)
        sums[9] += seconds * span.batch
        self.seconds_by_batch[span.batch] += seconds
        self.rates_by_batch[span.batch] = (span.on_rate, span.off_rate)

    def _settled(self, span: Span) -> bool:
        """Whether the span's bucket has had its time to settle."""
        label = _BUCKETS[span.batch]
        first = self._first.get(label)
        if first is None:
            first = self._first[label] = span.begin
            self.news.append(first)
        return span.begin >= first + self.settling_seconds

    def mark(self, at: float) -> None:
        """Keep the sums as they are at a moment."""
        self.marks.append(Mark(at, *self._sums))

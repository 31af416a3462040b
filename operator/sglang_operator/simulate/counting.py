"""The counters of the engine patch, as a jumping server fills them, with the noise that single steps would bring.

Counted are back-to-back decode steps: the first one after a prefill, an idle turn or a change of mode is left out. The
noise, of acceptance and of step times, is drawn when somebody reads, from the variance that has gathered since.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from sglang_operator.simulate.ledger import Span
from sglang_specpatch.runtime.buckets import bucket

STEP_TIME_SPREAD = 0.03
"""Standard deviation of a single step's time, as a part of it."""


@dataclass(slots=True)
class Count:
    """Sums over the counted steps of one mode and batch-size bucket."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    """Batch sizes in sum."""
    seconds_squared: float = 0.0
    probe_steps: int = 0
    """All steps that were probes, counted or not."""


@dataclass(slots=True)
class _Fresh(Count):
    """What came since the last reading, without noise, and the variance of its tokens and seconds."""

    token_variance: float = 0.0
    seconds_variance: float = 0.0


Key = tuple[str, str]
"""Mode (`on`, `off`) and bucket label."""


class Counting:
    """The counters of one server process."""

    def __init__(self, seed: int) -> None:
        self._noise = random.Random(f"counters {seed}")
        self._counts: dict[Key, Count] = {}
        self._fresh: dict[Key, _Fresh] = {}
        self._alone = True
        self._drafting = False

    def interrupt(self) -> None:
        """Note that something else than a decode step ran, or nothing."""
        self._alone = True

    def restart(self) -> None:
        """Begin at zero."""
        self._counts, self._fresh = {}, {}
        self._alone = True

    def add(self, span: Span, token_variance: float) -> None:
        """Count a span of equal steps; `token_variance` is that of all its tokens."""
        counted = span.steps - (self._alone or span.drafting != self._drafting)
        self._alone, self._drafting = False, span.drafting
        key = ("on" if span.drafting else "off", bucket(span.batch))
        fresh = self._fresh.get(key)
        if fresh is None:
            fresh = self._fresh[key] = _Fresh()
        fresh.probe_steps += span.steps * span.probing
        part, each = counted / span.steps, span.seconds / span.steps
        variance = (STEP_TIME_SPREAD * each) ** 2
        fresh.steps += counted
        fresh.tokens += span.tokens * part
        fresh.seconds += counted * each
        fresh.requests += counted * span.batch
        fresh.seconds_squared += counted * (each * each + variance)
        fresh.token_variance += token_variance * part
        fresh.seconds_variance += counted * variance

    def read(self) -> dict[Key, Count]:
        """The counters as a scrape sees them now."""
        for key, fresh in self._fresh.items():
            count = self._counts.setdefault(key, Count())
            count.steps += fresh.steps
            count.tokens += self._drawn(fresh.tokens, fresh.token_variance)
            count.seconds += self._drawn(fresh.seconds, fresh.seconds_variance)
            count.requests += fresh.requests
            count.probe_steps += fresh.probe_steps
            count.seconds_squared += fresh.seconds_squared
        self._fresh = {}
        return {key: replace(count) for key, count in self._counts.items()}

    def _drawn(self, mean: float, variance: float) -> float:
        return max(0.0, mean + math.sqrt(variance) * self._noise.gauss(0, 1))

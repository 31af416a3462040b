"""Who decides how many tokens a decode step drafts, at the moment of the step: thresholds, the oracle, SGLang's rule.

All of them live in the server and see what it sees there. Who changes a threshold from outside, from what Prometheus
says, is in `operators`.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sglang_operator.simulate.costs import DRAFTED_TOKENS
from sglang_specpatch.runtime.probing import ProbeSchedule, drafting_stops


class Choice(NamedTuple):
    """How the next step runs."""

    drafted_tokens: int
    probing: bool = False
    """Whether its mode is the one that the threshold doesn't ask for."""


class Steering(Protocol):
    """Decides each step: first how it runs, then for how many steps at the same batch size that holds."""

    def choose(self, batch: int, on_rate: float, off_rate: float) -> Choice:
        """Decide the next step of `batch` requests; the rates, in tokens/s, are for the oracle's eyes alone."""

    def take(self, batch: int, most: int, accepted: float, variance: float) -> int:
        """Run up to `most` steps as chosen; returns how many, at least 1.

        accepted: mean of the accepted drafts of a request and step; variance: of that mean over one step's requests.
        """


class Oracle:
    """The better of the two modes at every step."""

    def choose(self, batch: int, on_rate: float, off_rate: float) -> Choice:
        """On if it is faster."""
        return Choice(DRAFTED_TOKENS if on_rate > off_rate else 0)

    def take(self, batch: int, most: int, accepted: float, variance: float) -> int:
        """It holds for as long as the rates do."""
        return most


class Threshold:
    """The engine patch's rule and probes: its own functions, called once for each step."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.probe_permille = 0
        self._schedule = ProbeSchedule()
        self._probing = False
        self._ahead: bool | None = None
        """What the schedule said of the next step already, while it was asked how long the last answer holds."""

    def set(self, batch_size: int, probe_permille: int) -> None:
        """Obey a live update."""
        if (batch_size, probe_permille) != (self.batch_size, self.probe_permille):
            self.batch_size, self.probe_permille = batch_size, probe_permille
            self._ahead = None

    def restart(self, batch_size: int) -> None:
        """Boot with a threshold, and without probes."""
        self._schedule = ProbeSchedule()
        self.set(batch_size, 0)

    def choose(self, batch: int, on_rate: float, off_rate: float) -> Choice:
        """No drafting at the threshold and above; the other way round in a probe."""
        ahead, self._ahead = self._ahead, None
        self._probing = self._probes(batch) if ahead is None else ahead
        drafts = drafting_stops(self.batch_size, batch) is self._probing
        return Choice(DRAFTED_TOKENS if drafts else 0, self._probing)

    def take(self, batch: int, most: int, accepted: float, variance: float) -> int:
        """Until the next probe begins or this one ends."""
        if not self.probe_permille:
            return most
        for steps in range(1, most):
            probes = self._probes(batch)
            if probes is not self._probing:
                self._ahead = probes
                return steps
        return most

    def _probes(self, batch: int) -> bool:
        return self._schedule.probes(self.batch_size, self.probe_permille, batch)


# SGLang 0.5.23, srt/speculative/adaptive_spec_params.py, DEFAULT_ADAPTIVE_CONFIG: draft lengths that may be chosen from
# a batch size on, and the hysteresis of going down; the other settings are that file's defaults, too.
_ADAPTIVE_CONFIG: tuple[tuple[int, tuple[int, ...], float], ...] = (
    (1, (1, 3, 5, 7), -0.25),
    (8, (0, 1, 3), 0.0),
    (32, (0, 1), 0.0),
    (64, (0,), 0.0),
)
_EMA_ALPHA = 0.2
_UPDATE_INTERVAL = 5
_WARMUP_BATCHES = 10


@dataclass
class _Slot:
    """`AdaptiveStepSlot` of that file: one moving mean of accepted drafts, and the draft length chosen from it."""

    candidates: tuple[int, ...]
    down_hysteresis: float
    current: int = field(init=False)
    mean: float = field(init=False)
    batches: int = 0

    def __post_init__(self) -> None:
        middle = self.candidates[len(self.candidates) // 2]
        self.current = DRAFTED_TOKENS if DRAFTED_TOKENS in self.candidates else middle
        self.mean = float(self.current - 1)

    @property
    def until_update(self) -> int:
        """Steps up to and with the next one after which the draft length is chosen anew."""
        first = _WARMUP_BATCHES + _UPDATE_INTERVAL
        return first - self.batches if self.batches < first else _UPDATE_INTERVAL - self.batches % _UPDATE_INTERVAL

    def update(self, steps: int, accepted: float, deviation: float, draws: random.Random) -> None:
        """Take in equal steps, at most `until_update` of them, with the noise that single steps would bring."""
        if self.current > 0:
            kept = (1 - _EMA_ALPHA) ** steps
            spread = math.sqrt(_EMA_ALPHA / (2 - _EMA_ALPHA) * (1 - kept * kept))
            self.mean = kept * self.mean + (1 - kept) * accepted + spread * deviation * draws.gauss(0, 1)
        due = self.until_update == steps
        self.batches += steps
        if due:
            self._choose()

    def _choose(self) -> None:
        """`_recompute_params`, without its ceiling, which the default configuration switches off."""
        index = old = self.candidates.index(self.current)
        if self.current == 0:
            self.current = self.candidates[min(index + 1, len(self.candidates) - 1)]
            if self.current > 0 and self.mean < 0:
                self.mean = float(self.current - 1)
            return
        while index > 0:
            lower = self.candidates[index - 1]
            if self.mean > (0.5 if lower == 0 else lower - 0.5) + self.down_hysteresis:
                break
            index -= 1
        if index == old:
            while index < len(self.candidates) - 1 and self.mean > self.candidates[index] - 0.5:
                index += 1
        self.current = self.candidates[index]


class Adaptive:
    """SGLang's `--speculative-adaptive`, restated: draft lengths from accepted drafts, in slots by batch size.

    A batch belongs to the slot of the last size that is not above it, after padding to the graph size. SGLang pads only
    with CUDA graphs; the graph sizes are those it captures with speculation by default.
    """

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(f"adaptive {seed}")
        self._sizes = [size for size, _, _ in _ADAPTIVE_CONFIG]
        self._slots = [_Slot(candidates, down) for _, candidates, down in _ADAPTIVE_CONFIG]
        self._graphs = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]

    def _slot(self, batch: int) -> _Slot:
        index = bisect.bisect_left(self._graphs, batch)
        padded = self._graphs[index] if index < len(self._graphs) else batch
        return self._slots[max(0, bisect.bisect_right(self._sizes, padded) - 1)]

    def choose(self, batch: int, on_rate: float, off_rate: float) -> Choice:
        """The slot's draft length."""
        return Choice(self._slot(batch).current)

    def take(self, batch: int, most: int, accepted: float, variance: float) -> int:
        """Up to the slot's next update, from which it learns. A slot without a choice has nothing to learn."""
        slot = self._slot(batch)
        if len(slot.candidates) == 1:
            return most
        steps = min(most, slot.until_update)
        slot.update(steps, accepted, math.sqrt(variance), self._draws)
        return steps

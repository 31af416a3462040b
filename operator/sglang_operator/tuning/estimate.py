"""What each mode yields at any batch size, and how surely: estimated from cells of counted steps.

    rate(b) = b * a(b) / t(b)

a: output tokens of a request in a step (the accepted length while drafting); it belongs to the prompts and hardly
depends on the batch, so it is a mean over all batch sizes that fades with distance. t: seconds of a step; a step reads
the weights once and then pays per request, so t is affine in b to first order: a straight line is fitted around b,
to which cells count less the further away they are, so that steps at graph sizes and bends are followed. Separately
because a short burst tells t nearly exactly, and a far better from everything that was ever accepted.

Both are weighted means in the sense of Gauss and Markov, by inverse variances; the line is a Bayesian one (Bishop,
Pattern Recognition and Machine Learning, 2006, 3.3), whose prior of the slope decides only where a single batch size
was seen. The variance of a cell is what its number of steps leaves open, divided by 2^(-age / half-life), plus what
distance leaves open: a number from other batch sizes or an older time tells less.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import Cell
from sglang_operator.tuning.samples import Bucket, Mode

_STEP_SPREAD = 0.2
"""Standard deviation of single steps' seconds, relative, where nothing better is known."""
_STEP_SPREAD_WEIGHT = 1.0
"""That assumption counts as much as so many measured steps."""
_YIELD_WITHIN = 0.25
"""Relative variance of the tokens of one request in one drafting step: of a geometric law, cut off at the drafts."""
_YIELD_BETWEEN = 0.08
"""Relative variance of the mean yields of requests, since prompts differ. It counts by requests, not by steps:"""
_STEPS_IN_A_ROW = 32
"""after so many steps in a row all requests are taken to be other ones,"""
BURST_STEPS = 4
"""and after one burst of probes, which has so many steps in the server: bursts are far apart."""
_BURSTS_SHARE = 0.2
"""A mode that took up less of its window ran in bursts."""
_BEND = 0.05
"""Relative deviation of t from its tangent, and of a from itself, at twice or half the batch."""
_LARGEST_BEND = 0.1
"""The same at any distance: over wide ranges, too, a step costs about a constant and something for each request."""
_FLOOR = 0.004
"""Relative standard deviation that no number of steps takes away."""
_STALE = 0.3
"""Relative standard deviation of what is older than a drift, beside its own."""
REACH_OCTAVES = 1.0
"""A line is followed beyond the smallest and the largest batch size seen by at most so many doublings."""
_BEND_OUTSIDE = 0.1
"""Relative deviation of t from the line one doubling beyond the batch sizes seen."""
_ROUNDING = 1e-9
_ELASTICITY = 0.4
"""Prior of the relative slope, b / t * dt/db, with as large a standard deviation."""


@dataclass(frozen=True)
class Drifts:
    """Seconds since the last drift of the steps' seconds, and of what they yield; infinity: none is known."""

    steps: float = math.inf
    yields: float = math.inf


@dataclass(frozen=True)
class Estimate:
    """A positive number and its relative standard deviation."""

    value: float
    deviation: float


@dataclass(frozen=True)
class Difference:
    """Both modes' rates (tokens/s) at one batch size."""

    batch_size: float
    on: Estimate
    off: Estimate

    @property
    def log_ratio(self) -> float:
        """ln(rate drafting / rate not drafting): above zero, drafting is better."""
        return math.log(self.on.value / self.off.value)

    @property
    def deviation(self) -> float:
        """Standard deviation of `log_ratio`."""
        return math.hypot(self.on.deviation, self.off.deviation)

    @property
    def better(self) -> Mode:
        """The better mode by its mean."""
        return Mode.ON if self.on.value > self.off.value else Mode.OFF

    def loss(self, mode: Mode) -> float:
        """Part of the better mode's output that `mode` gives away, 0 to 1."""
        return 1 - self._rate(mode).value / max(self.on.value, self.off.value)

    def possible_loss(self, mode: Mode, deviations: float) -> float:
        """The same, if the other mode is so many of its own standard deviations better than it seems."""
        other = self._rate(mode.other)
        ratio = self._rate(mode).value / other.value * math.exp(-deviations * other.deviation)
        return max(0.0, 1 - ratio)

    def _rate(self, mode: Mode) -> Estimate:
        return self.on if mode is Mode.ON else self.off


@dataclass(frozen=True)
class _Point:
    """A value at a batch size, with its relative variance."""

    batch_size: float
    value: float
    variance: float

    @cached_property
    def octave(self) -> float:
        return math.log2(self.batch_size)


class Estimator:
    """Estimates from cells, those older than a drift as stale ones."""

    def __init__(self, cells: Sequence[Cell], drifts: Drifts, limits: Limits) -> None:
        self._half_life = limits.half_life_seconds
        self._steps = {mode: self._by_bucket(cells, mode, lambda cell: self._step(cell, drifts.steps)) for mode in Mode}
        self._yields = {
            mode: self._by_bucket(cells, mode, lambda cell: self._yield(cell, drifts.yields)) for mode in Mode
        }
        self._known: dict[float, Difference | None] = {}
        self._seconds: dict[tuple[Mode, float], Estimate | None] = {}

    def difference(self, batch_size: float) -> Difference | None:
        """Compare the modes at a batch size; None while one of them was never seen near it."""
        if batch_size not in self._known:
            self._known[batch_size] = self._difference(batch_size)
        return self._known[batch_size]

    def step_seconds(self, mode: Mode, batch_size: float) -> Estimate | None:
        """Seconds of one step; None where the mode was never seen near that batch size."""
        key = (mode, batch_size)
        if key not in self._seconds:
            self._seconds[key] = _line_at(self._steps[mode], batch_size)
        return self._seconds[key]

    def _difference(self, batch_size: float) -> Difference | None:
        on, off = (self._rate(mode, batch_size) for mode in Mode)
        return Difference(batch_size, on, off) if on and off else None

    def _rate(self, mode: Mode, batch_size: float) -> Estimate | None:
        seconds, tokens = self.step_seconds(mode, batch_size), _mean_at(self._yields[mode], batch_size)
        if seconds is None or tokens is None:
            return None
        deviation = math.hypot(seconds.deviation, tokens.deviation, _FLOOR)
        return Estimate(batch_size * tokens.value / seconds.value, deviation)

    def _by_bucket(self, cells: Sequence[Cell], mode: Mode, point: Callable[[Cell], _Point]) -> list[_Point]:
        found: defaultdict[Bucket, list[_Point]] = defaultdict(list)
        for cell in cells:
            if cell.mode is mode:
                found[cell.bucket].append(point(cell))
        return sorted((_combined(points) for points in found.values()), key=lambda point: point.batch_size)

    def _step(self, cell: Cell, drift: float) -> _Point:
        return self._point(cell, cell.step_seconds, step_variance(cell), drift)

    def _yield(self, cell: Cell, drift: float) -> _Point:
        # Without drafts a request gets one token a step, whatever drifted.
        drift = drift if cell.mode is Mode.ON else math.inf
        return self._point(cell, cell.tokens_per_request, yield_variance(cell), drift)

    def _point(self, cell: Cell, value: float, variance: float, drift: float) -> _Point:
        faded = (variance + _FLOOR**2) * 2 ** (cell.window.middle_seconds / self._half_life)
        stale = _STALE**2 if cell.window.oldest_seconds > drift else 0.0
        return _Point(cell.batch_size, value, faded + stale)


def _combined(points: Sequence[_Point]) -> _Point:
    """Return the mean of one bucket's points by inverse variance; they lie so near that no slope matters."""
    weights = [1 / point.variance for point in points]
    total = sum(weights)
    batch_size = sum(w * point.batch_size for w, point in zip(weights, points, strict=True)) / total
    value = sum(w * point.value for w, point in zip(weights, points, strict=True)) / total
    return _Point(batch_size, value, 1 / total)


def step_variance(cell: Cell) -> float:
    """Relative variance of a cell's mean step seconds."""
    spread = _STEP_SPREAD**2
    if cell.seconds_squared is not None:
        measured = max(0.0, cell.seconds_squared / cell.steps / cell.step_seconds**2 - 1)
        spread = (_STEP_SPREAD_WEIGHT * spread + cell.steps * measured) / (_STEP_SPREAD_WEIGHT + cell.steps)
    return spread / cell.steps


def yield_variance(cell: Cell) -> float:
    """Relative variance of a cell's mean tokens of a request in a step; without drafts each request gets one."""
    if cell.mode is Mode.OFF:
        return 0.0
    in_bursts = cell.seconds < _BURSTS_SHARE * cell.window.length_seconds
    different = cell.batch_size * max(1.0, cell.steps / (BURST_STEPS if in_bursts else _STEPS_IN_A_ROW))
    return _YIELD_WITHIN / cell.requests + _YIELD_BETWEEN / different


def _seen_from(points: Sequence[_Point], batch_size: float) -> list[tuple[float, float, float]]:
    """Return (relative distance, value, relative variance as seen from `batch_size`) of each point."""
    octave = math.log2(batch_size)
    found = []
    for point in points:
        away = abs(point.octave - octave)
        bend = min(_BEND * away * max(away, 0.25), _LARGEST_BEND)
        found.append((point.batch_size / batch_size - 1, point.value, point.variance + bend * bend))
    return found


def _mean_at(points: Sequence[_Point], batch_size: float) -> Estimate | None:
    if not points:
        return None
    total = value_sum = 0.0
    for _, value, variance in _seen_from(points, batch_size):
        total += 1 / variance
        value_sum += value / variance
    return Estimate(value_sum / total, math.sqrt(1 / total))


def _line_at(points: Sequence[_Point], batch_size: float) -> Estimate | None:
    """Fit value = t + g * z, z the relative distance to `batch_size`, with a prior of g; return t."""
    if not points:
        return None
    octave = math.log2(batch_size)
    outside = max(0.0, points[0].octave - octave, octave - points[-1].octave)
    if outside > REACH_OCTAVES + _ROUNDING:
        return None
    seen = _seen_from(points, batch_size)
    scale = min(seen, key=lambda item: abs(item[0]))[1]
    weighted = [(z, value / scale, scale * scale / (variance * value * value)) for z, value, variance in seen]
    total = sum(w for _, _, w in weighted)
    centre = sum(w * z for z, _, w in weighted) / total
    mean = sum(w * y for _, y, w in weighted) / total
    prior = 1 / _ELASTICITY**2
    spread = prior + sum(w * (z - centre) ** 2 for z, _, w in weighted)
    slope = (prior * _ELASTICITY + sum(w * (z - centre) * (y - mean) for z, y, w in weighted)) / spread
    fitted = mean - slope * centre
    variance = 1 / total + centre * centre / spread + (_BEND_OUTSIDE * outside) ** 2
    if fitted <= 0:
        return Estimate(scale, 1.0)
    return Estimate(fitted * scale, math.sqrt(variance) / fitted)

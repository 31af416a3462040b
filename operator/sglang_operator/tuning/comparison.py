"""Which threshold gives away least, compared with the one that stands, and how surely.

A mode's loss at a batch size is 1 - rate / (better rate). A threshold's loss at the present load is the mean of the
losses of the modes that it chooses, weighted by decode time; where a mode was never seen nothing is lost or gained, so
that a gain is always a part of the whole present load.

Beside the load, all batch sizes from the smallest to the largest that the last 15 minutes saw count a little, each
octave alike, and a little beyond them those of which the better mode is sure by the fitted lines. They decide between
thresholds that the present load can't tell apart, and are reason enough for a change by themselves: the threshold
should stand at the crossing before the load is there. So does a large loss at any one of them.

Candidates are the crossings, the starts of the buckets, the bounds and the threshold that stands. Where the modes cross
twice (drafting hurts few requests, helps more, hurts many; mixture-of-experts models do that), a single threshold can't
follow both, and the one that loses least is taken all the same.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_operator.tuning import rule
from sglang_operator.tuning.estimate import REACH_OCTAVES, Difference, Estimator
from sglang_operator.tuning.load import Share
from sglang_operator.tuning.samples import Mode

_SPAN_WEIGHT = 0.02
"""Weight of all batch sizes beside that of the present load."""
_BATCHES_PER_OCTAVE = 3
_ALIKE = 2e-5
"""Thresholds whose weighted losses differ by less are equally good."""


@dataclass(frozen=True)
class Part:
    """A batch size with its weight and the modes' difference there."""

    weight: float
    difference: Difference

    def loss(self, threshold: int) -> float:
        """What a threshold gives away here, as a part of the better mode's rate, times the weight."""
        return self.weight * self.difference.loss(rule.mode(threshold, self.difference.batch_size))


@dataclass(frozen=True)
class Gain:
    """What one threshold saves over another, as a part of throughput, and its standard deviation."""

    value: float
    deviation: float

    def surely(self, deviations: float) -> float:
        """The gain, if it is so many of its standard deviations smaller than it seems."""
        return self.value - deviations * self.deviation


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The threshold that loses least."""

    best: int
    load_gain: Gain
    """What `best` saves over the threshold that stands, at the present load."""
    span_gain: Gain
    """The same over all batch sizes seen in 15 minutes and one doubling beyond, each octave alike."""
    peak_gain: Gain
    """The same for the largest loss at any of them."""
    witness: Part
    """The batch size of the present load that speaks most for `best`."""
    crossings: tuple[int, ...]
    """Batch sizes at which the better mode changes, as far as it is known for sure."""
    starts_off: bool
    """Whether not drafting is better below the first of them."""


def compare(
    estimator: Estimator,
    load: Sequence[Share],
    *,
    low: int,
    high: int,
    standing: int,
    seen: tuple[float, float],
    deviations: float,
) -> Comparison | None:
    """Compare thresholds from `low` to `high` with the one that stands; None when nothing busy is known in both modes.

    `standing` lies within the bounds. `seen` are the smallest and the largest batch size seen. Of equally good
    thresholds the nearest to `standing` is best.
    """
    busy = _parts(estimator, [(share.batch_size, share.share) for share in load])
    if not busy:
        return None
    span = _span_parts(estimator, *seen, deviations)
    turns = _turns(sorted({p.difference.batch_size: p.difference for p in (*busy, *span)}.values(), key=_batch_size))
    candidates = {standing, *rule.candidates(low=low, high=high), *(turn for turn in turns if low <= turn <= high)}
    at_load, over_span = _Losses(busy), _Losses(span)
    losses = {each: at_load.of(each) + _SPAN_WEIGHT * over_span.of(each) for each in candidates}
    least = min(losses.values())
    best = rule.nearest((threshold for threshold, loss in losses.items() if loss <= least + _ALIKE), standing)
    sure = [part.difference for part in span if abs(part.difference.log_ratio) > part.difference.deviation]
    return Comparison(
        best=best,
        load_gain=_gain(busy, best, standing),
        span_gain=_gain(span, best, standing),
        peak_gain=_peak_gain(span, best, standing, deviations),
        witness=max(busy, key=lambda part: (part.loss(standing) - part.loss(best), part.weight)),
        crossings=_turns(sure),
        starts_off=bool(sure) and sure[0].better is Mode.OFF,
    )


def _parts(estimator: Estimator, weighted: Sequence[tuple[float, float]]) -> list[Part]:
    known = ((weight, estimator.difference(batch_size)) for batch_size, weight in weighted)
    return [Part(weight, difference) for weight, difference in known if difference is not None]


def _span(smallest: float, largest: float) -> list[float]:
    """Return batch sizes from one to the other, evenly in their logarithm."""
    octaves = math.log2(largest / smallest)
    count = round(octaves * _BATCHES_PER_OCTAVE)
    return [smallest * 2 ** (octaves * index / count) for index in range(count + 1)] if count else [smallest]


def _span_parts(estimator: Estimator, smallest: float, largest: float, deviations: float) -> list[Part]:
    """Return the batch sizes that were seen, and those a little beyond them of which the better mode is sure."""
    sizes = _span(max(1.0, smallest / 2**REACH_OCTAVES), largest * 2**REACH_OCTAVES)
    known = [
        difference
        for size in sizes
        if (difference := estimator.difference(size))
        and (smallest <= size <= largest or abs(difference.log_ratio) > deviations * difference.deviation)
    ]
    return [Part(1 / len(known), difference) for difference in known]


def _batch_size(difference: Difference) -> float:
    return difference.batch_size


class _Losses:
    """What thresholds give away over the same parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        ordered = sorted(parts, key=lambda part: part.difference.batch_size)
        self._sizes = [part.difference.batch_size for part in ordered]
        drafting = [part.weight * part.difference.loss(Mode.ON) for part in ordered]
        plain = [part.weight * part.difference.loss(Mode.OFF) for part in ordered]
        self._drafting = [0.0, *itertools.accumulate(drafting)]
        self._plain = [0.0, *itertools.accumulate(plain)]

    def of(self, threshold: int) -> float:
        """The sum for a threshold: drafting below it, not drafting from it on."""
        below = len(self._sizes) if threshold == rule.ALWAYS else bisect.bisect_left(self._sizes, threshold)
        return self._drafting[below] + self._plain[-1] - self._plain[below]


def _gain(parts: Sequence[Part], best: int, standing: int) -> Gain:
    differing = [
        part
        for part in parts
        if rule.mode(best, part.difference.batch_size) is not rule.mode(standing, part.difference.batch_size)
    ]
    return Gain(
        value=sum(part.loss(standing) - part.loss(best) for part in differing),
        deviation=sum(part.weight * part.difference.deviation for part in differing),
    )


def _peak_gain(parts: Sequence[Part], best: int, standing: int, deviations: float) -> Gain:
    """Compare the largest losses; that of `standing` is where it is surely largest."""

    def loss(part: Part, threshold: int) -> float:
        return part.difference.loss(rule.mode(threshold, part.difference.batch_size))

    if not parts:
        return Gain(0.0, 0.0)
    worst = max(parts, key=lambda part: loss(part, standing) - deviations * part.difference.deviation)
    return Gain(
        value=loss(worst, standing) - max(loss(part, best) for part in parts), deviation=worst.difference.deviation
    )


def _turns(ordered: Sequence[Difference]) -> tuple[int, ...]:
    """Return the batch sizes at which the better mode changes, straight between neighbours in ln(batch size)."""
    found: list[int] = []
    for left, right in itertools.pairwise(ordered):
        if left.better is not right.better:
            part = left.log_ratio / (left.log_ratio - right.log_ratio)
            found.append(math.ceil(left.batch_size * (right.batch_size / left.batch_size) ** part))
    return tuple(found)

"""Whether the newest steps still cost and yield what older ones did; if not, the older ones don't count any more.

Fading alone would follow a jump (other prompts, longer contexts, a slower card) only after a half-life. So the windows
are split at each of their borders, the sums on both sides are compared batch size by batch size, and where they differ
by more than chance and more than a trifle, what is older than the border counts as stale, then and later on: it gets a
large variance, so that it speaks only where nothing newer does, and softly. Seconds and yields are judged apart: other
prompts change what a draft yields and not what a step costs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_operator.tuning.estimate import Drifts, step_variance, yield_variance
from sglang_operator.tuning.model import Cell
from sglang_operator.tuning.samples import WINDOWS, Bucket, Mode

_DEVIATIONS = 4.0
"""A difference must exceed so many standard deviations; thousands of comparisons are made in an hour."""
_LEAST = 0.04
"""Smallest relative difference that counts as a drift."""
_ELASTICITY = 0.5
"""Taken for how seconds grow with the batch within a bucket, which may be anything from 0 to 1."""
_NOISE = 0.01
"""Relative standard deviation of a bucket's mean that more steps don't take away, for example by the mix of lengths."""


def find(cells: Sequence[Cell], known: Drifts) -> Drifts:
    """Return the last drifts: those known before, or newer ones that the cells show."""
    steps, yields = _within(cells, known.steps), _within(cells, known.yields)
    return Drifts(
        steps=min(known.steps, _age(steps, lambda cell: cell.step_seconds, step_variance, by_batch=True)),
        yields=min(known.yields, _age(yields, lambda cell: cell.tokens_per_request, yield_variance, by_batch=False)),
    )


def _within(cells: Sequence[Cell], age_seconds: float) -> tuple[Cell, ...]:
    """Return the cells whose whole window is newer than a moment."""
    return tuple(cell for cell in cells if cell.window.oldest_seconds <= age_seconds)


@dataclass
class _Side:
    """Mean of ln(value) and of ln(batch size) on one side of a border, by inverse variance."""

    weight: float = 0.0
    value: float = 0.0
    batch: float = 0.0

    def add(self, value: float, batch_size: float, variance: float) -> None:
        weight = 1 / variance
        self.value += weight * math.log(value)
        self.batch += weight * math.log(batch_size)
        self.weight += weight


def _age(
    cells: Sequence[Cell], value: Callable[[Cell], float], variance: Callable[[Cell], float], *, by_batch: bool
) -> float:
    """Return the age of the border at which `value` drifted most clearly; infinity where it didn't."""
    clearest, age = _DEVIATIONS, math.inf
    for border in sorted({window.age_seconds for window in WINDOWS if window.age_seconds}):
        shift = _shift(cells, border, value, variance, by_batch=by_batch)
        if shift > clearest:
            clearest, age = shift, border
    return age


def _shift(
    cells: Sequence[Cell],
    border: float,
    value: Callable[[Cell], float],
    variance: Callable[[Cell], float],
    *,
    by_batch: bool,
) -> float:
    """Return by how many standard deviations a mode's values differ across a border; 0 for a trifle."""
    newer: defaultdict[tuple[Mode, Bucket], _Side] = defaultdict(_Side)
    older: defaultdict[tuple[Mode, Bucket], _Side] = defaultdict(_Side)
    for cell in cells:
        side = newer if cell.window.age_seconds < border else older
        side[cell.mode, cell.bucket].add(value(cell), cell.batch_size, variance(cell) + _NOISE**2)
    most = 0.0
    for mode in Mode:
        weight = total = 0.0
        for key in newer.keys() & older.keys():
            if key[0] is not mode:
                continue
            new, old = newer[key], older[key]
            change = new.value / new.weight - old.value / old.weight
            moved = new.batch / new.weight - old.batch / old.weight if by_batch else 0.0
            change -= _ELASTICITY * moved
            certainty = 1 / (1 / new.weight + 1 / old.weight + (_ELASTICITY * moved) ** 2)
            total, weight = total + certainty * change, weight + certainty
        if weight and abs(total / weight) > _LEAST:
            most = max(most, abs(total) / math.sqrt(weight))
    return most

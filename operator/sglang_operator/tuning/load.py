"""Where the service decodes now: decode time by batch size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import Cell
from sglang_operator.tuning.samples import Bucket

_WITHIN = ((0.25, 0.5), (0.5, 0.0), (0.25, -0.5))
"""Parts of a bucket's time, and how far from its mean towards its start (or its end) they lie. The mean is all that is
measured; so much spread keeps a threshold inside a bucket from seeming sharper than that."""


@dataclass(frozen=True)
class Share:
    """Part of the present decode time, 0 to 1, at one batch size."""

    batch_size: float
    share: float


def present(cells: Sequence[Cell], limits: Limits) -> tuple[Share, ...]:
    """Return the present load in order of batch size; nothing when nothing was decoded lately."""
    seconds: defaultdict[Bucket, float] = defaultdict(float)
    requests: defaultdict[Bucket, float] = defaultdict(float)
    steps: defaultdict[Bucket, float] = defaultdict(float)
    for cell in cells:
        weight = 2 ** (-cell.window.middle_seconds / limits.load_half_life_seconds)
        if cell.window.age_seconds >= limits.load_seconds:
            continue
        seconds[cell.bucket] += weight * cell.seconds
        requests[cell.bucket] += weight * cell.requests
        steps[cell.bucket] += weight * cell.steps
    total = sum(seconds.values())
    shares: list[Share] = []
    for bucket in sorted(seconds, key=lambda bucket: bucket.low):
        mean = requests[bucket] / steps[bucket]
        for part, towards_start in _WITHIN:
            edge = bucket.low if towards_start > 0 else bucket.high or mean
            batch_size = mean + abs(towards_start) * (edge - mean)
            shares.append(Share(batch_size, part * seconds[bucket] / total))
    return tuple(shares)


def seen(cells: Sequence[Cell]) -> tuple[float, float]:
    """Return the smallest and the largest mean batch size of all cells, of which there must be one."""
    sizes = [cell.batch_size for cell in cells]
    return min(sizes), max(sizes)

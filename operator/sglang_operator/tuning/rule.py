"""What a threshold means: T drafts while fewer than T requests decode together; 0 always drafts, 1 never.

Only a fixed threshold may be 0, since it is the smallest number and the widest setting at once: `Auto` compares
thresholds by size, between bounds of at least 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_operator.api.names import THRESHOLD_MAX
from sglang_operator.tuning.samples import BUCKETS, Mode

ALWAYS = 0
NEVER = 1


def describe(threshold: int) -> str:
    """Write a threshold for people."""
    return {ALWAYS: "0 (always draft)", NEVER: "1 (never draft)"}.get(threshold, str(threshold))


def clamp(threshold: int, *, low: int, high: int) -> int:
    """Return the threshold from `low` to `high` (1 <= low <= high) that acts most like `threshold`."""
    return high if threshold == ALWAYS else min(max(threshold, low), high)


def mode(threshold: int, batch_size: float) -> Mode:
    """Return the mode that a threshold chooses at a batch size, which may be a mean."""
    return Mode.ON if threshold == ALWAYS or batch_size < threshold else Mode.OFF


def candidates(*, low: int, high: int) -> tuple[int, ...]:
    """Thresholds worth comparing from `low` to `high`: both of them, and the start of every bucket between."""
    return tuple(sorted({clamp(edge, low=low, high=high) for edge in (*(b.low for b in BUCKETS), THRESHOLD_MAX)}))


def nearest(thresholds: Iterable[int], to: int) -> int:
    """Return the threshold closest to `to`, and of two equally close ones the one that drafts less."""
    return min(thresholds, key=lambda threshold: (abs(threshold - to), threshold))

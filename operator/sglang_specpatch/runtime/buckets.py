"""Ranges of batch sizes: steps are added up by them, and a probe stays near the one that it began in."""

from __future__ import annotations

from bisect import bisect_left

_ENDS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
BUCKETS = (
    "1", "2", "3-4", "5-6", "7-8", "9-12", "13-16", "17-24", "25-32", "33-48", "49-64", "65-96", "97-128",
    "129-192", "193-256", "257+",
)  # fmt: skip
"""Label values of `batch_size`, in order; the last bucket has no end."""

_STARTS = (0, *(end + 1 for end in _ENDS))
_NO_END = 2**63
_AROUND = tuple(zip((0, *_STARTS), (*_ENDS[1:], _NO_END, _NO_END), strict=False))


def bucket_index(batch_size: int) -> int:
    """Return the position in BUCKETS of the bucket that a batch size falls into."""
    return bisect_left(_ENDS, batch_size)


def bucket(batch_size: int) -> str:
    """Return the label of the bucket that a batch size falls into."""
    return BUCKETS[bucket_index(batch_size)]


def around(batch_size: int) -> tuple[int, int]:
    """Return the lowest and the highest batch size of its bucket and the two buckets next to it."""
    return _AROUND[bucket_index(batch_size)]

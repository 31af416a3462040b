"""The tile of the triton backend's extend kernel when it is given few tokens a request, as by a verify.

SGLang takes the tile of a prefill, up to 128 rows, for a verify of four tokens too: a block computes the rows that
aren't there, and each head of each request has its block. A tile of 16 rows, the fewest that a matrix unit takes,
reads the keys in longer pieces instead. That changes the order of sums, and so results in their last bits.
"""

from __future__ import annotations

import functools

from .engine import logger, setting_reader
from .settings import CHOICES, VERIFY_TILE

ROWS, COLUMNS = 16, 128
"""Queries and keys of a tile; more columns than that don't fit the shared memory of every GPU."""

MAX_HEAD_SIZE = 128
"""Wider heads, as of latent attention, were not measured, and take more shared memory."""

_DEFAULT, _SHORT = CHOICES[VERIFY_TILE]


def extend_tile(tokens: int, head_size: int, rows: int, columns: int) -> tuple[int, int]:
    """Called before an extend of up to so many `tokens` a request: its tile, which else is `rows` by `columns`."""
    if tokens > ROWS or head_size > MAX_HEAD_SIZE or not _is_chosen():
        return rows, columns
    _note_use()
    return ROWS, COLUMNS


def in_use() -> str:
    """Return the tile of verifies so far, by the word that chooses it; a server that captures graphs has made some."""
    return _SHORT if _note_use.cache_info().currsize else _DEFAULT


def _is_chosen() -> bool:
    try:
        return _chosen() == _SHORT
    except Exception:
        # Kernels are also called without a server, which has the setting.
        return False


@functools.cache
def _chosen() -> object:
    return setting_reader(VERIFY_TILE)()


@functools.cache
def _note_use() -> None:
    logger.info("Verify tile: %s", _SHORT)

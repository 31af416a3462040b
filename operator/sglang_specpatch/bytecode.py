"""Cached bytecode of patched files.

The import system takes a cache for its source by time and size, by hash, or (unchecked) by its mere presence, and looks
for it beside the source or under a prefix; so a cache can win over the source it was not made from.
"""

from __future__ import annotations

import glob
import importlib.util
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path


def beside(source: Path) -> list[Path]:
    """Return the caches next to a source, those of every interpreter and optimization level."""
    return sorted((source.parent / "__pycache__").glob(f"{glob.escape(source.stem)}.*.pyc"))


def caches(source: Path) -> list[Path]:
    """Return the caches next to a source and those under this interpreter's prefix."""
    elsewhere = Path(importlib.util.cache_from_source(str(source))).parent
    return sorted({*beside(source), *elsewhere.glob(f"{glob.escape(source.stem)}.*.pyc")})


def drop(sources: Iterable[Path]) -> None:
    """Remove the caches of some sources as far as permitted; whether the rest can win is for `stale` to say."""
    for source in sources:
        for cached in caches(source):
            with suppress(OSError):
                cached.unlink()


def stale(source: Path) -> Path | None:
    """Return the cache that this interpreter would run in place of a source, or None if what it runs is the source."""
    cached = Path(importlib.util.cache_from_source(str(source)))
    if not cached.exists():
        return None
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loaded = SourceFileLoader("stale", str(source)).get_code("stale")
    except (ImportError, EOFError, ValueError):
        loaded = None
    finally:
        sys.dont_write_bytecode = writes
    return None if loaded == compile(source.read_bytes(), str(source), "exec", dont_inherit=True) else cached


def drop_stale(sources: Iterable[Path]) -> list[Path]:
    """Remove the caches that would win over their sources, and return those that can't be removed."""
    staying = []
    for source in sources:
        cached = stale(source)
        if cached is not None:
            with suppress(OSError):
                cached.unlink()
            if cached.exists():
                staying.append(cached)
    return staying

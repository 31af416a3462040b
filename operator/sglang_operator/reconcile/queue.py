"""The work queue: which services need a pass, each at most once at a time.

A key that is added while it waits is kept once; added while a pass over it runs, it gets one more pass afterwards.
A failed pass is repeated after a delay that doubles, with jitter, so that one bad service neither stops the others
nor loads the API server.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from sglang_operator.api.names import ServiceKey

FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 60.0


class WorkQueue:
    """Keys to work on. Made and used inside one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[ServiceKey] = asyncio.Queue()
        self._waiting: set[ServiceKey] = set()
        self._running: set[ServiceKey] = set()
        self._again: set[ServiceKey] = set()
        self._timers: dict[ServiceKey, asyncio.TimerHandle] = {}
        self._failures: dict[ServiceKey, int] = {}

    def add(self, key: ServiceKey) -> None:
        """Ask for a pass as soon as possible."""
        self._cancel_timer(key)
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: ServiceKey, seconds: float) -> None:
        """Ask for a pass after a delay; an earlier one that is planned already wins."""
        when = asyncio.get_running_loop().time() + seconds
        planned = self._timers.get(key)
        if planned is not None and planned.when() <= when:
            return
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_at(when, self._due, key)

    def retry(self, key: ServiceKey) -> float:
        """Ask for a pass after a failed one; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 10))
        delay *= 0.8 + 0.4 * random.random()  # noqa: S311 - jitter, no secret
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: ServiceKey) -> None:
        """Forget earlier failures."""
        self._failures.pop(key, None)

    async def take(self) -> ServiceKey:
        """Wait for the next key; the caller must say `done` afterwards."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._running.add(key)
        return key

    def done(self, key: ServiceKey) -> None:
        """The pass over this key ended, well or not."""
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Cancel all planned passes."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _due(self, key: ServiceKey) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: ServiceKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

"""The machine's clock. The only place in the operator that reads it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Implements `ports.Clock`."""

    def now(self) -> datetime:
        """Return the time of day in UTC, with its zone."""
        return datetime.now(UTC)

    def monotonic_seconds(self) -> float:
        """Return a time that never goes back, for durations."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

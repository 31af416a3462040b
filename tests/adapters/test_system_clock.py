"""The system clock: UTC with its zone, a monotonic side, and a wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from sglang_operator.adapters.clock import SystemClock


async def test_the_clock_of_the_machine() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    before = clock.monotonic_seconds()
    started = time.monotonic()
    await clock.sleep(0.05)
    assert clock.monotonic_seconds() - before >= 0.04
    assert time.monotonic() - started < 5

"""What a load run consists of: phases of constant concurrency or constant arrival rate, bounded in time and number."""

from __future__ import annotations

import dataclasses
import math
import random

MAX_SECONDS = 24 * 3600.0
MAX_CONCURRENCY = 4096
MAX_RATE = 10_000.0


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of load: either `concurrency` requests always under way, or `rate` new requests a second."""

    seconds: float
    concurrency: int | None = None
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Length:
    """Tokens of a prompt or an output: uniform from low to high."""

    low: int
    high: int

    def draw(self, source: random.Random) -> int:
        """One length."""
        return source.randint(self.low, self.high)


def phases_from_text(text: str) -> tuple[Phase, ...]:
    """Read `1:30,64:60,r2.5:20`: concurrency:seconds, or r and requests a second.

    Raises ValueError naming the wrong phase and the right form.
    """
    phases = tuple(_phase(part.strip()) for part in text.split(","))
    if sum(phase.seconds for phase in phases) > MAX_SECONDS:
        raise ValueError(f"the phases last longer than {MAX_SECONDS:g} seconds in sum")
    return phases


def length_from_text(text: str) -> Length:
    """Read `128` or `100-200`. Raises ValueError with the right form."""
    low_text, _, high_text = text.partition("-")
    try:
        low, high = int(low_text), int(high_text or low_text)
    except ValueError:
        low, high = 0, 0
    if not 1 <= low <= high <= 1_000_000:
        raise ValueError(f"{text!r} is no length: give tokens as 128 or 100-200, from 1 to 1000000")
    return Length(low, high)


def _phase(text: str) -> Phase:
    amount, _, seconds_text = text.partition(":")
    try:
        seconds = float(seconds_text)
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
            raise ValueError("seconds out of range")
        if amount.startswith("r"):
            rate = float(amount[1:])
            if not 0 < rate <= MAX_RATE:
                raise ValueError("rate out of range")
            return Phase(seconds, rate=rate)
        concurrency = int(amount)
        if not 0 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError("concurrency out of range")
        return Phase(seconds, concurrency=concurrency)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no phase: give concurrency:seconds as 64:60 (0 to {MAX_CONCURRENCY} requests at once), "
            "or r and requests a second as r2.5:60"
        ) from error

"""Is the process getting anywhere? Loops beat; the liveness probe fails when one of them has gone silent."""

from __future__ import annotations

from sglang_operator.adapters.ports import Clock


class Heartbeat:
    """Last sign of life of each loop, in monotonic seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: dict[str, float] = {}
        self._beats: dict[str, float] = {}

    def expect(self, name: str, *, within_seconds: float) -> None:
        """Start to expect a beat of `name` at least every `within_seconds`."""
        self._limits[name] = within_seconds
        self.beat(name)

    def beat(self, name: str) -> None:
        """Record a sign of life."""
        self._beats[name] = self._clock.monotonic_seconds()

    def silent(self) -> tuple[str, ...]:
        """Return the loops that have been silent for too long, with the seconds."""
        now = self._clock.monotonic_seconds()
        return tuple(
            f"{name} ({now - self._beats[name]:.0f} s)"
            for name, limit in self._limits.items()
            if now - self._beats[name] > limit
        )

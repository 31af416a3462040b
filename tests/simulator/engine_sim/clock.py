"""The time that drives an engine: real, or stepped by hand in tests and simulations."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Protocol

from engine_sim.scheduler import Job, Outcome, Scheduler


class Clock(Protocol):
    """Seconds from an arbitrary start that never run backwards."""

    def now(self) -> float:
        """Seconds now."""

    async def sleep_until(self, seconds: float) -> None:
        """Return at or after `seconds`; always let other tasks run once."""


class RealClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    async def sleep_until(self, seconds: float) -> None:
        """Sleep to that moment, or only yield if it has passed."""
        await asyncio.sleep(max(0.0, seconds - time.monotonic()))


class VirtualEngine:
    """Runs one scheduler on a virtual clock: seconds pass by being added, as fast as the machine computes.

    Arrivals are given ahead (open loop) or made when a request finishes (closed loop, `on_finished`).
    """

    def __init__(self, scheduler: Scheduler, *, on_finished: Callable[[Job], None] | None = None) -> None:
        self.scheduler = scheduler
        self.now_seconds = 0.0
        self.tokens = 0
        self._on_finished = on_finished
        self._arrivals: list[tuple[float, int, int, int]] = []
        self._submitted = 0

    def arrive(self, prompt_tokens: int, output_tokens: int, *, at_seconds: float | None = None) -> None:
        """Let a request arrive now or later."""
        self._submitted += 1
        at = self.now_seconds if at_seconds is None else max(at_seconds, self.now_seconds)
        heapq.heappush(self._arrivals, (at, self._submitted, prompt_tokens, output_tokens))

    def run_until(self, seconds: float) -> None:
        """Let steps run until none starts before `seconds`."""
        while self.now_seconds < seconds:
            self._take_arrivals()
            step = self.scheduler.begin(self.now_seconds)
            if step is None:
                self.now_seconds = min(seconds, self._arrivals[0][0]) if self._arrivals else seconds
                continue
            self.now_seconds += step.seconds
            self._report(self.scheduler.finish(step, self.now_seconds))

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_seconds:
            at, number, prompt_tokens, output_tokens = heapq.heappop(self._arrivals)
            self.scheduler.submit(Job(number, prompt_tokens, output_tokens, at))

    def _report(self, outcome: Outcome) -> None:
        self.tokens += outcome.tokens
        if self._on_finished is not None:
            for job in outcome.finished:
                self._on_finished(job)

"""Requests: what arrives when, of which length and class. The same seed gives the same requests to every policy.

In a closed loop a fixed number of clients each wait for their answer and ask again, so the batch is theirs to choose.
In an open loop requests come at a rate of their own, whatever the server does, and a slow server gathers a crowd.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_TABLE = 4096
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Steps(Generic[_Value]):
    """A value that changes at moments: pairs of second and value in rising order, the first at 0."""

    points: tuple[tuple[float, _Value], ...]

    def at(self, seconds: float) -> _Value:
        """The value in force at a moment."""
        return self.points[bisect.bisect_right(self._moments, seconds) - 1][1]

    @functools.cached_property
    def _moments(self) -> tuple[float, ...]:
        return tuple(second for second, _ in self.points)


def constant(value: _Value) -> Steps[_Value]:
    """A value that never changes."""
    return Steps(((0.0, value),))


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `context_tokens` are cached before it comes, `prompt_tokens` must be prefilled."""

    prompt_tokens: int
    context_tokens: int
    output_tokens: int
    kind: int
    """Index of its class of prompts."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What requests look like: output lengths spread evenly from half to one and a half of the mean."""

    factors: tuple[float, ...] = (0.94, 1.06)
    """Acceptance of each class, in terms of the curve's mean."""
    shares: Steps[tuple[float, ...]] = Steps(((0.0, (0.5, 0.5)),))
    """Share of each class in the requests."""
    prompt_tokens: int = 256
    context_tokens: Steps[int] = Steps(((0.0, 0),))
    output_tokens: int = 768


class RequestMaker:
    """Draws requests, by their number and the moment they come."""

    def __init__(self, prompts: Prompts, seed: int) -> None:
        draws = random.Random(f"requests {seed}")
        self._prompts = prompts
        self._bounds = Steps(
            tuple((second, tuple(itertools.accumulate(shares))) for second, shares in prompts.shares.points)
        )
        self._draws = [(draws.random(), 0.5 + draws.random()) for _ in range(_TABLE)]
        self._number = 0

    def make(self, now: float) -> Request:
        """The next request, coming now."""
        pick, length = self._draws[self._number % _TABLE]
        self._number += 1
        prompts = self._prompts
        kind = min(bisect.bisect_right(self._bounds.at(now), pick), len(prompts.factors) - 1)
        output = max(1, round(prompts.output_tokens * length))
        return Request(prompts.prompt_tokens, prompts.context_tokens.at(now), output, kind)


class Source(Protocol):
    """Where requests come from."""

    @property
    def next_at(self) -> float:
        """When something may come next without a request having ended; infinity if nothing will."""

    def take(self, now: float) -> list[Request]:
        """The requests that came up to now."""

    def gone(self, count: int) -> None:
        """Note that so many requests ended, or were lost with the server."""


class ClosedLoop:
    """So many clients as the moment has; surplus ones leave when their request ends."""

    def __init__(self, clients: Steps[int], maker: RequestMaker) -> None:
        self._clients, self._maker = clients, maker
        self._change = 0
        self._active = 0

    @property
    def next_at(self) -> float:
        """The next change of the number of clients."""
        points = self._clients.points
        return points[self._change][0] if self._change < len(points) else math.inf

    def take(self, now: float) -> list[Request]:
        """The clients that have nothing running ask."""
        while self.next_at <= now:
            self._change += 1
        missing = self._clients.points[self._change - 1][1] - self._active
        if missing <= 0:
            return []
        self._active += missing
        return [self._maker.make(now) for _ in range(missing)]

    def gone(self, count: int) -> None:
        """So many clients are free again."""
        self._active -= count


class OpenLoop:
    """Requests at given moments."""

    def __init__(self, moments: Iterator[float], maker: RequestMaker) -> None:
        self._moments, self._maker = moments, maker
        self._next = next(moments, math.inf)

    @property
    def next_at(self) -> float:
        """The next arrival."""
        return self._next

    def take(self, now: float) -> list[Request]:
        """The requests whose moment has passed."""
        taken = []
        while self._next <= now:
            taken.append(self._maker.make(self._next))
            self._next = next(self._moments, math.inf)
        return taken

    def gone(self, count: int) -> None:
        """The senders don't care."""


def poisson(rate: Steps[float], until: float, seed: int) -> Iterator[float]:
    """Moments of a Poisson process whose rate, in 1/s, changes in steps.

    With exponential gaps of unit rate, each moment is where the integral of the rate has grown by the gap.
    """
    draws = random.Random(f"arrivals {seed}")
    ends = [second for second, _ in rate.points[1:]] + [until]
    gap = draws.expovariate(1.0)
    for (start, per_second), end in zip(rate.points, ends, strict=True):
        now = start
        while per_second > 0 and now + gap / per_second <= end:
            now += gap / per_second
            yield now
            gap = draws.expovariate(1.0)
        gap -= max(0.0, (end - now) * per_second)

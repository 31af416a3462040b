"""Step time of an engine as a function of batch size and mode: the cost side of the simulation.

A curve answers one question: how many seconds does one decode step of `batch_size` requests take, with
drafting (`Mode.ON`), with drafting switched off on a speculating server (`Mode.OFF`), or on a server started
without speculation (`Mode.NONE`)? Between given points time is interpolated linearly in batch size (a decode
step reads the weights once and then pays per request, so time is affine in batch size to first order); beyond the
last point the last slope is kept. The functions are pure, so they serve the real-time server and a fake clock alike.

Rates and seconds are linked by the mean acceptance length `a` (output tokens per request and drafting step):

    tokens per second = batch size × a / step seconds        (a = 1 in the modes OFF and NONE)
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import itertools
import math


class Mode(enum.Enum):
    """How a decode step is run."""

    ON = "on"
    OFF = "off"
    NONE = "none"


class CurveError(ValueError):
    """A curve is not usable; the message names the curve, the field and the right form."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Seconds of a decode step at some batch sizes, interpolated linearly between them.

    `points` are (batch size, seconds) in rising order of batch size.

    Raises CurveError if there is no point, or one out of order or not positive and finite.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise CurveError("a line needs at least one point of batch size and seconds")
        for batch, seconds in self.points:
            if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(batch) and batch > 0):
                raise CurveError(f"batch size {batch:g} with {seconds:g} seconds: both must be positive finite numbers")
        for (left, _), (right, _) in itertools.pairwise(self.points):
            if right <= left:
                raise CurveError(f"batch sizes must rise: {right:g} comes after {left:g}")

    def seconds(self, batch_size: float) -> float:
        """Seconds of one step; constant below the first point, straight on beyond the last one."""
        points = self.points
        if batch_size <= points[0][0] or len(points) == 1:
            return points[0][1]
        index = min(bisect.bisect_left(points, (batch_size, 0.0)), len(points) - 1)
        (left, left_seconds), (right, right_seconds) = points[index - 1], points[index]
        slope = (right_seconds - left_seconds) / (right - left)
        if batch_size > right:
            slope = max(slope, 0.0)
            return right_seconds + slope * (batch_size - right)
        return left_seconds + slope * (batch_size - left)


@dataclasses.dataclass(frozen=True)
class Curve:
    """The cost of one engine: a line per mode, and what goes with it.

    accept_length: mean output tokens per request and drafting step for which `on` holds.
    graph_sizes: batch sizes of captured graphs; a step is padded to the next one. Empty: no padding.
    prefill_floor_seconds, prefill_seconds_per_token: a prefill of n tokens takes
        max(floor, n × seconds per token): bound by reading the weights first, by arithmetic later.
    source: where the numbers come from.

    Raises CurveError if a number is out of its range.
    """

    name: str
    source: str
    on: Line
    off: Line
    none: Line
    accept_length: float = 2.4
    graph_sizes: tuple[int, ...] = ()
    prefill_floor_seconds: float = 0.005
    prefill_seconds_per_token: float = 29e-6

    def __post_init__(self) -> None:
        if not 1.0 <= self.accept_length <= 64.0:
            raise CurveError(f"curve {self.name!r}: accept_length {self.accept_length:g} must lie between 1 and 64")
        if self.prefill_floor_seconds < 0 or self.prefill_seconds_per_token < 0:
            raise CurveError(f"curve {self.name!r}: prefill seconds must not be negative")

    def step_seconds(self, mode: Mode, batch_size: int) -> float:
        """Seconds of one decode step of `batch_size` requests (at least 1)."""
        line = {Mode.ON: self.on, Mode.OFF: self.off, Mode.NONE: self.none}[mode]
        return line.seconds(self._padded(batch_size))

    def tokens_per_second(self, mode: Mode, batch_size: int, accept_length: float | None = None) -> float:
        """Output tokens per second of a full row of decode steps, prefill not counted."""
        accepted = (self.accept_length if accept_length is None else accept_length) if mode is Mode.ON else 1.0
        return batch_size * accepted / self.step_seconds(mode, batch_size)

    def better(self, batch_size: int, accept_length: float | None = None) -> Mode:
        """The mode, ON or OFF, with the higher rate at this batch size; OFF if they are equal."""
        on = self.tokens_per_second(Mode.ON, batch_size, accept_length)
        return Mode.ON if on > self.tokens_per_second(Mode.OFF, batch_size) else Mode.OFF

    def crossings(self, largest_batch: int = 1024, accept_length: float | None = None) -> tuple[int, ...]:
        """Batch sizes at which the better mode differs from that of the next smaller batch size."""
        modes = [self.better(batch, accept_length) for batch in range(1, largest_batch + 1)]
        return tuple(
            batch for batch, (before, here) in enumerate(itertools.pairwise(modes), start=2) if here is not before
        )

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds of one prefill step over `tokens` prompt tokens."""
        return max(self.prefill_floor_seconds, tokens * self.prefill_seconds_per_token)

    def _padded(self, batch_size: int) -> int:
        index = bisect.bisect_left(self.graph_sizes, batch_size)
        return self.graph_sizes[index] if index < len(self.graph_sizes) else batch_size


def line_from_rates(
    rates: tuple[tuple[int, float], ...], accept_length: float, other_seconds_per_token: float = 0.0
) -> Line:
    """Turn pairs of batch size and measured output tokens per second into seconds per step.

    step seconds = batch size × accept_length × (1 / rate − other_seconds_per_token)

    other_seconds_per_token: the share of each output token's time that was not decoding, to be taken out of a rate
    measured end to end.
    """
    return Line(
        tuple(
            (float(batch), batch * accept_length * (1.0 / rate - other_seconds_per_token))
            for batch, rate in sorted(rates)
        )
    )


def affine(base_seconds: float, seconds_per_request: float) -> Line:
    """The line base_seconds + seconds_per_request × batch size."""
    return Line(tuple((b, base_seconds + seconds_per_request * b) for b in (1.0, 1024.0)))

"""What the next decode step of the decode off path is, and when the draft model's log is due: bookkeeping alone."""

from __future__ import annotations

from enum import Enum

from .offpath_types import Tensor

FLUSH_STEPS = 8
"""The draft model's keys and values are written for this many steps at once: less often holds more memory."""


class Step(Enum):
    """How one decode step is run."""

    DRAFT = "draft"
    """Drafts and their verification, by SGLang's own code."""

    DECODE = "decode"
    """One token, as without speculation."""

    RESUME = "resume"
    """One token, and what the first draft of the next step starts from."""


class Resumption:
    """Remembers which requests a decode step left with nothing to draft from, so that one more step makes it first.

    All running requests decode together: whoever isn't in the batch is gone, or will be prefilled again.
    """

    def __init__(self) -> None:
        self._stale: set[int] = set()
        self._marked: Tensor = None

    def prefilled(self, slots: Tensor) -> None:
        """Note that the requests in these slots, on the host, can be drafted for: their prefill made what it takes."""
        self._stale.difference_update(slots.tolist())

    def unprepared(self, slots: Tensor) -> None:
        """Note that the prefill of the requests in these slots, on the host, left nothing to draft from."""
        self._stale.update(slots.tolist())

    def choose(self, drafting: bool, slots: Tensor) -> Step:
        """Choose the step of the requests in these slots, given that drafts are wanted or not."""
        if not drafting:
            if slots is not self._marked:  # SGLang makes a new tensor whenever requests join or leave.
                self._stale.update(slots.tolist())
                self._marked = slots
            return Step.DECODE
        if not self._stale:
            return Step.DRAFT
        ready = self._stale.isdisjoint(slots.tolist())
        self._stale.clear()
        self._marked = None
        return Step.DRAFT if ready else Step.RESUME


class LogBook:
    """Counts the rows and steps in a log of fixed size."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._steps = 0
        self.rows = 0

    def fits(self, rows: int) -> bool:
        """Tell whether so many more rows find room."""
        return self.rows + rows <= self._capacity

    def add(self, rows: int) -> slice:
        """Return where the rows of one step go."""
        start, self.rows = self.rows, self.rows + rows
        self._steps += 1
        return slice(start, self.rows)

    @property
    def due(self) -> bool:
        """Whether the log holds as many steps as it is meant to."""
        return self._steps >= FLUSH_STEPS

    def clear(self) -> None:
        """Start again from nothing."""
        self._steps = self.rows = 0

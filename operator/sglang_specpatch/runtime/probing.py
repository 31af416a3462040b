"""Which mode a decode step runs in: what the threshold says, or, now and then, the other mode, to measure it.

With a threshold alone each batch size is only ever seen in one mode. So a share of all decode steps, `permille`,
runs in the mode that the threshold does not choose, in bursts of BURST_STEPS steps:

- Every decode step is eligible, whatever its batch size: the other mode is measured where the load is, also where
  all of it lies on one side of the threshold, and for the thresholds 0 (always drafting) and 1 (never).
- Each step earns `permille` credits, and a burst costs 1000 for each of its steps, paid when it begins. Since the
  start, therefore, at most `permille` / 1000 of the steps were probes, and of any w steps in a row at most
  w * `permille` / 1000 + BURST_STEPS. The first burst comes one whole period after the start. Credit outlasts
  changes of threshold and share, so changes can't starve probing; at share 0 it neither grows nor is spent.
- A burst holds one mode: the one that the threshold did not choose at its first step. Where the batch crosses the
  threshold meanwhile, that mode is what the threshold says, and such steps are no probes.
- A burst ends early, and the rest of it is lost, when the threshold or the share changes, or when the batch leaves
  the bucket in which the burst began and the two next to it. Prefills and idle turns in between don't end it.

A decision depends on batch sizes and live settings alone, which are the same on every tensor-parallel rank at each
step: so are the decisions. Nothing here knows about waiting requests: the queue can't be reached from the worker.
Whoever sets the share takes it to 0 while requests wait.
"""

from __future__ import annotations

from .buckets import around

BURST_STEPS = 4
"""The first step after a change of mode isn't counted, so fewer would waste more of what they cost. More would last
long where the other mode is slow: steps of half a second have been seen."""

BURST_COST = 1000 * BURST_STEPS


def drafting_stops(threshold: int, batch_size: int) -> bool:
    """Decide one step: no drafting once `threshold` or more requests decode together; 0 never stops it."""
    return 0 < threshold <= batch_size


class ProbeSchedule:
    """Decides for one decode step after the other whether it is a probe."""

    def __init__(self) -> None:
        self._threshold = 0
        self._permille = 0
        self._credit = 0
        self._left = 0
        self._stops = False
        self._lowest = self._highest = 0

    def probes(self, threshold: int, permille: int, batch_size: int) -> bool:
        """Tell whether the next decode step runs in the other mode than `drafting_stops` says.

        Called once for each decode step. `permille` is the share of probes, 0 to 500 in 1000 steps.
        """
        if threshold != self._threshold or permille != self._permille:
            self._threshold, self._permille = threshold, permille
            self._left = 0
        if not permille:
            return False
        self._credit += permille
        if self._left and not self._lowest <= batch_size <= self._highest:
            self._left = 0
        elif not self._left and self._credit >= BURST_COST:
            self._credit -= BURST_COST
            self._left = BURST_STEPS
            self._stops = drafting_stops(threshold, batch_size)
            self._lowest, self._highest = around(batch_size)
        if not self._left:
            return False
        self._left -= 1
        return drafting_stops(threshold, batch_size) is self._stops

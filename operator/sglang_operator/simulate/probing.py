"""The engine patch's own probe schedule, for a simulator that jumps over runs of equal steps."""

from __future__ import annotations

import copy

from sglang_specpatch.runtime.probing import BURST_COST, ProbeSchedule

FOREVER = 1 << 40
"""More steps than any run has."""


class JumpingSchedule(ProbeSchedule):
    """Says what comes, and for how long, before it takes any step.

    Taking steps one by one by `probes` and taking them in jumps come to the same.
    """

    def ahead(self, threshold: int, permille: int, batch_size: int) -> tuple[bool, int]:
        """Tell whether the next steps at this batch size are probes, and for how many steps (at least 1) that holds."""
        tried = copy.copy(self)
        probe = tried.probes(threshold, permille, batch_size)
        if probe or tried._left:
            return probe, 1 + tried._left
        return False, 1 + max(0, (BURST_COST - 1 - tried._credit) // permille) if permille else FOREVER

    def advance(self, threshold: int, permille: int, batch_size: int, steps: int) -> None:
        """Take steps, at least 1 and at most as many as `ahead` says."""
        self.probes(threshold, permille, batch_size)
        self._credit += (steps - 1) * permille
        if self._left:
            self._left -= steps - 1

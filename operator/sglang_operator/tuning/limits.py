"""What keeps the tuner calm: times, sizes and shares, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the tuner's own behaviour. Defaults need no touch."""

    dwell_seconds: float = 30
    """Shortest time between two changes. Longer: calmer, and later to follow."""
    min_evidence_seconds: float = 2
    """Decode time that a mode needs in a bucket before its rate counts. Longer: less noise, longer trials."""
    min_gain: float = 0.02
    """Smallest gain worth a change, as a part of throughput. Larger: calmer, and further from the optimum."""
    exploration_seconds: float = 120
    """Longest time of a trial; at least four scrape intervals, or it sees nothing."""
    exploration_interval_seconds: float = 1800
    """Shortest time between two trials at the same batch sizes. Longer: cheaper, and later to see a drift."""
    exploration_share: float = 0.05
    """Part of the time that trials may take in the long run."""
    exploration_busy_share: float = 0.05
    """Part of the present decode time that batch sizes need before they are worth a trial. With 16 buckets some bucket
    always has it, so that no load is spread too thin for trials."""

    @property
    def longest_trial_seconds(self) -> float:
        """Longest time of a trial, which can't end before the dwell time has passed."""
        return max(self.exploration_seconds, self.dwell_seconds)


DEFAULTS = Limits()

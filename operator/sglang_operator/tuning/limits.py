"""What keeps the tuner calm, and what probing may cost: times, sizes and shares, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the tuner's own behaviour. Defaults need no touch."""

    dwell_seconds: float = 30
    """Shortest time between two changes. Longer: calmer, and later to follow."""
    moves_an_hour: int = 12
    """Most changes within an hour, emergencies aside. Fewer: calmer under load that wanders."""
    min_gain: float = 0.02
    """Smallest gain worth a change, as a part of throughput. Larger: calmer, and further from the optimum."""
    min_peak_gain: float = 0.05
    """Smallest gain worth a change at the batch size that loses most, however little load it has."""
    emergency_gain: float = 0.10
    """A gain that is surely as large as this is taken at once. Smaller: sooner, and less calm."""
    deviations: float = 2.0
    """How many standard deviations of its gain a change must be sure by. More: fewer mistakes, later to follow."""
    half_life_seconds: float = 180
    """Age at which a measurement counts half. Longer: less noise, later to see a slow drift."""
    load_half_life_seconds: float = 60
    """The same for what counts as the present load."""
    load_seconds: float = 300
    """Time after which decoding is no part of the present load any more."""
    fallback_seconds: float = 1800
    """Time without any usable numbers after which the spec's own value holds again."""
    probe_cost: float = 0.003
    """Part of the output that probing may cost in the long run."""
    search_cost: float = 0.03
    """The same while the better mode isn't known for sure."""
    search_loss: float = 0.05
    """It isn't while a threshold may be giving away so much, as far as is known. Smaller: surer, and dearer."""
    probe_budget_seconds: float = 2.0
    """What such searching may cost within 15 minutes, in seconds of output, and at least `probe_cost` of the time."""
    search_permille: int = 32
    """Largest probe share: while a mode was never measured at the present load."""
    refine_permille: int = 16
    """Largest probe share while the modes were compared, but aren't told apart for sure."""
    probe_bursts_a_minute: float = 2.0
    """Bursts, over all servers, that keep evidence fresh. More: sooner to see a drift."""


DEFAULTS = Limits()

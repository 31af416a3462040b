"""The decision that everything else carries around: which threshold, since when, and why; and how much to probe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sglang_operator.api.v1alpha1 import ThresholdEvidence, ThresholdSource


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A threshold for all pods of one service, and the probe share that goes with it.

    `decided_at` (UTC, with its zone), `source`, `message` and `evidence` speak of the threshold alone.
    """

    batch_size: int
    source: ThresholdSource
    decided_at: datetime
    message: str
    probe_permille: int = 0
    """Share of the eligible decode steps, in thousandths, that servers run in the other mode; at most 500."""
    evidence: ThresholdEvidence | None = None
    """The rates behind a measured threshold."""

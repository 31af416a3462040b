"""The decision that everything else carries around: which threshold, since when, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sglang_operator.api.v1alpha1 import ThresholdSource


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A threshold for all pods of one service. `decided_at` is in UTC, with its zone."""

    batch_size: int
    source: ThresholdSource
    decided_at: datetime
    message: str

"""The policies that a run can follow: the operator's own, the baselines, and the oracle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sglang_operator.api.names import THRESHOLD_MAX


class Kind(StrEnum):
    """Who decides."""

    AUTO = "auto"
    """The operator's tuner."""
    FIXED = "fixed"
    """Nobody: the threshold stays."""
    ADAPTIVE = "adaptive"
    """SGLang's `--speculative-adaptive`."""
    BANDIT = "bandit"
    """A bandit over thresholds, rewarded with throughput."""
    ORACLE = "oracle"
    """The better mode at every step."""


@dataclass(frozen=True)
class Policy:
    """One of the kinds; `batch_size` is the threshold of a fixed one, in the engine's meaning."""

    kind: Kind
    batch_size: int = 0

    @property
    def name(self) -> str:
        """As in the table: `on` and `off` are the thresholds 0 and 1."""
        if self.kind is not Kind.FIXED:
            return self.kind.value
        return {0: "on", 1: "off"}.get(self.batch_size, f"fixed:{self.batch_size}")

    @property
    def has_threshold(self) -> bool:
        """Whether a threshold decides each step."""
        return self.kind in (Kind.AUTO, Kind.FIXED, Kind.BANDIT)


AUTO, ORACLE = Policy(Kind.AUTO), Policy(Kind.ORACLE)
BASELINES = (
    Policy(Kind.FIXED, 0),
    Policy(Kind.FIXED, 1),
    Policy(Kind.FIXED, 8),
    Policy(Kind.FIXED, 32),
    Policy(Kind.FIXED, 64),
    Policy(Kind.ADAPTIVE),
    Policy(Kind.BANDIT),
)
"""What the operator's tuner is compared with in every report."""


def parse_policy(text: str) -> Policy:
    """Read `auto`, `on`, `off`, `fixed:N`, `adaptive`, `bandit` or `oracle`. Raises ValueError with the right form."""
    fixed = re.fullmatch(r"fixed:([0-9]{1,7})", text)
    if fixed and int(fixed[1]) <= THRESHOLD_MAX:
        return Policy(Kind.FIXED, int(fixed[1]))
    plain = {"on": Policy(Kind.FIXED, 0), "off": Policy(Kind.FIXED, 1)}
    plain |= {kind.value: Policy(kind) for kind in Kind if kind is not Kind.FIXED}
    if text in plain:
        return plain[text]
    raise ValueError(
        f"there is no policy {text!r}; known: {', '.join(plain)}, and fixed:N with N up to {THRESHOLD_MAX}"
    )

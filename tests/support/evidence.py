"""Evidence and decisions in few words, for tests of the tuner."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode, ThresholdSource
from sglang_operator.tuning.model import Cell, Evidence, Freshness, Probe
from sglang_operator.tuning.samples import BUCKETS, WINDOWS, Bucket, Mode, Window

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ACCEPTED = 2.4
"""Output tokens of a request in a drafting step."""
NEWEST = WINDOWS[0]


def bucket(label: str) -> Bucket:
    """The bucket with this label."""
    return next(item for item in BUCKETS if item.label == label)


def cell(
    mode: Mode, label: str, rate: float, *, seconds: float = 20, batch: float | None = None, window: Window = NEWEST
) -> Cell:
    """Steps of one mode at `rate` tokens/s for `seconds`, of `batch` requests, by default the bucket's middle."""
    where = bucket(label)
    size = math.sqrt(where.low * (where.high or where.low)) if batch is None else batch
    tokens = rate * seconds
    requests = tokens / (ACCEPTED if mode is Mode.ON else 1.0)
    steps = requests / size
    return Cell(
        mode=mode,
        bucket=where,
        window=window,
        steps=steps,
        requests=requests,
        tokens=tokens,
        seconds=seconds,
        seconds_squared=seconds**2 / steps,
    )


def at(
    label: str,
    *,
    on: float | None = None,
    off: float | None = None,
    seconds: float = 20,
    batch: float | None = None,
    window: Window = NEWEST,
) -> tuple[Cell, ...]:
    """Rates (tokens/s) at a bucket, each measured for `seconds`; None: that mode was not seen."""
    rates = ((Mode.ON, on), (Mode.OFF, off))
    return tuple(
        cell(mode, label, rate, seconds=seconds, batch=batch, window=window) for mode, rate in rates if rate is not None
    )


def fresh(
    *cells: tuple[Cell, ...], now: datetime = START, probes: tuple[Probe, ...] = (), queued: float | None = 0
) -> Evidence:
    """Evidence that is two seconds old."""
    newest = now - timedelta(seconds=2)
    freshness = Freshness(reason=Reason.FRESH, message="1 of 1 pods have fresh samples.", newest_sample_at=newest)
    return Evidence(freshness=freshness, cells=tuple(itertools.chain(*cells)), probes=probes, queued_requests=queued)


def missing(*cells: tuple[Cell, ...], reason: Reason = Reason.STALE, has_pods: bool = True) -> Evidence:
    """Evidence that may not be acted upon, whatever it holds."""
    freshness = Freshness(reason=reason, message="The newest sample is 90 s old.")
    return Evidence(freshness=freshness, has_pods=has_pods, cells=tuple(itertools.chain(*cells)))


def auto(batch_size: int | None = None, *, low: int = 1, high: int = 256) -> DisableThreshold:
    """A policy that follows measurements."""
    return DisableThreshold(mode=ThresholdMode.AUTO, batch_size=batch_size, min=low, max=high)


def fixed(batch_size: int) -> DisableThreshold:
    """A policy with a declared value."""
    return DisableThreshold(mode=ThresholdMode.FIXED, batch_size=batch_size)


def decided(
    batch_size: int,
    *,
    source: ThresholdSource = ThresholdSource.SPEC,
    seconds_ago: float = 600,
    now: datetime = START,
    probe_permille: int = 0,
) -> Decision:
    """A decision in force."""
    return Decision(
        batch_size=batch_size,
        source=source,
        decided_at=now - timedelta(seconds=seconds_ago),
        message="Before.",
        probe_permille=probe_permille,
    )

"""Metric samples as the tuner sees them: one number a pod, mode and batch-size bucket, with its age.

Prometheus answers in text. `assemble` is the only way from that text to numbers, and it is strict: what isn't a
finite number of at least zero, an engine bucket or a mode, or carries no pod name, is left out and counted.
A number that is missing stays missing; it never becomes zero.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum


class Mode(StrEnum):
    """Whether the server drafted in a decode step."""

    ON = "on"
    OFF = "off"

    @property
    def other(self) -> Mode:
        """The other mode."""
        return Mode.OFF if self is Mode.ON else Mode.ON


@dataclass(frozen=True)
class Bucket:
    """Batch sizes from `low` to `high`, both included; `high` is None in the last, open bucket."""

    low: int
    high: int | None

    @property
    def label(self) -> str:
        """The bucket's label value in the engine's metrics, for example `9-12`."""
        if self.high is None:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


_EDGES = (1, 2, 3, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257)
BUCKETS: tuple[Bucket, ...] = (
    *(Bucket(low, following - 1) for low, following in itertools.pairwise(_EDGES)),
    Bucket(_EDGES[-1], None),
)
"""The engine's batch-size buckets, in order."""

_BUCKET_BY_LABEL = {bucket.label: bucket for bucket in BUCKETS}
_NUMBER = re.compile(r"[+]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


@dataclass(frozen=True, kw_only=True)
class ModeSample:
    """What one pod did in one mode and bucket: back-to-back decode steps only, so tokens / seconds is a rate."""

    namespace: str
    pod: str
    mode: Mode
    bucket: Bucket
    tokens: float
    seconds: float
    recent_seconds: float
    """Seconds of these within the recent window: what the pod is busy with now."""


@dataclass(frozen=True, kw_only=True)
class PodLoad:
    """The newest sample of one pod: when it was taken and how many requests were running."""

    namespace: str
    pod: str
    sampled_at: datetime
    running_requests: float | None
    """Requests that were running, or None where the server says nothing about it."""
    series: str = ""
    """Name of the series that the sample belongs to, in the spelling that Prometheus stores."""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """How many rows of an answer were left out, by cause."""

    no_pod: int = 0
    unknown_bucket: int = 0
    unknown_mode: int = 0
    bad_number: int = 0


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """One answer for the whole cluster."""

    taken_at: datetime
    modes: tuple[ModeSample, ...] = field(default=())
    loads: tuple[PodLoad, ...] = field(default=())
    ignored: Ignored = field(default=Ignored())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of an answer, as text; a label that the row doesn't carry is empty."""

    value: str
    namespace: str = ""
    pod: str = ""
    mode: str = ""
    batch_size: str = ""
    series: str = ""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to the queries of `tuning.queries.Queries`, field by field."""

    tokens: tuple[Row, ...] = ()
    seconds: tuple[Row, ...] = ()
    recent_seconds: tuple[Row, ...] = ()
    sampled_at: tuple[Row, ...] = ()
    running_requests: tuple[Row, ...] = ()


def parse_bucket(label: str) -> Bucket | None:
    """Return the engine's bucket with exactly this label, or None."""
    return _BUCKET_BY_LABEL.get(label)


def parse_mode(label: str) -> Mode | None:
    """Return the mode with exactly this label, or None."""
    return Mode(label) if label in tuple(Mode) else None


def parse_number(text: str) -> float | None:
    """Return a finite number of at least zero, or None for `NaN`, infinities, overflow, signs and everything else."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def assemble(answers: Answers, *, taken_at: datetime) -> MetricsSnapshot:
    """Turn the answers of one pass into samples.

    A pod's mode and bucket needs both tokens and seconds to count, since one without the other is no rate. Its
    recent seconds may be missing: then it did nothing lately.
    """
    ignored: Counter[str] = Counter()
    tokens = _by_mode(answers.tokens, ignored)
    seconds = _by_mode(answers.seconds, ignored)
    recent = _by_mode(answers.recent_seconds, ignored)
    modes = tuple(
        ModeSample(
            namespace=key.namespace,
            pod=key.pod,
            mode=key.mode,
            bucket=key.bucket,
            tokens=tokens[key],
            seconds=seconds[key],
            recent_seconds=recent.get(key, 0.0),
        )
        for key in tokens
        if key in seconds
    )
    loads = _loads(answers.sampled_at, answers.running_requests, ignored)
    return MetricsSnapshot(taken_at=taken_at, modes=modes, loads=loads, ignored=Ignored(**ignored))


@dataclass(frozen=True)
class _Key:
    namespace: str
    pod: str
    mode: Mode
    bucket: Bucket


def _by_mode(rows: Iterable[Row], ignored: Counter[str]) -> dict[_Key, float]:
    numbers: dict[_Key, float] = {}
    for row in rows:
        mode, bucket, number = parse_mode(row.mode), parse_bucket(row.batch_size), parse_number(row.value)
        if not (row.namespace and row.pod):
            ignored["no_pod"] += 1
        elif bucket is None:
            ignored["unknown_bucket"] += 1
        elif mode is None:
            ignored["unknown_mode"] += 1
        elif number is None:
            ignored["bad_number"] += 1
        else:
            key = _Key(row.namespace, row.pod, mode, bucket)
            numbers[key] = max(number, numbers.get(key, 0.0))
    return numbers


def _loads(sampled: Iterable[Row], running: Iterable[Row], ignored: Counter[str]) -> tuple[PodLoad, ...]:
    requests: dict[tuple[str, str], float] = {}
    for row in running:
        number = parse_number(row.value)
        if number is None:
            ignored["bad_number"] += 1
        else:
            requests[row.namespace, row.pod] = number
    newest: dict[tuple[str, str], PodLoad] = {}
    for row in sampled:
        number = parse_number(row.value)
        key = (row.namespace, row.pod)
        if not all(key):
            ignored["no_pod"] += 1
        elif number is None or number > _LAST_SECOND:
            ignored["bad_number"] += 1
        else:
            load = PodLoad(
                namespace=row.namespace,
                pod=row.pod,
                sampled_at=datetime.fromtimestamp(number, UTC),
                running_requests=requests.get(key),
                series=row.series,
            )
            known = newest.get(key)
            if known is None or (known.sampled_at, known.series) < (load.sampled_at, load.series):
                newest[key] = load
    return tuple(newest.values())

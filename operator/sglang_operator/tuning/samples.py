"""Metric samples as the tuner sees them: sums a pod, mode, batch-size bucket and window of time.

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


@dataclass(frozen=True)
class Window:
    """Time from `age_seconds` + `length_seconds` ago to `age_seconds` ago."""

    age_seconds: int
    length_seconds: int

    @property
    def label(self) -> str:
        """The window's name in queries and answers."""
        return f"{self.age_seconds}+{self.length_seconds}"

    @property
    def oldest_seconds(self) -> int:
        """Age of its beginning."""
        return self.age_seconds + self.length_seconds

    @property
    def middle_seconds(self) -> float:
        """Age of its middle."""
        return self.age_seconds + self.length_seconds / 2


WINDOWS: tuple[Window, ...] = (Window(0, 30), Window(30, 60), Window(90, 210), Window(300, 600))
"""The evidence by age, newest first. They meet and don't overlap, so that each step counts once."""

SPARSE = Window(0, 90)
"""Stands for the first two windows where scrapes are too far apart for two of them in 30 seconds."""

PROBES = Window(0, 900)
"""The time over which the cost of probing is added up."""

_WINDOW_BY_LABEL = {window.label: window for window in (*WINDOWS, SPARSE, PROBES)}


@dataclass(frozen=True, kw_only=True)
class ModeSample:
    """What one pod did in one mode, bucket and window: sums over its counted steps, all of them above zero.

    Counted are back-to-back decode steps, so tokens / seconds is a rate of decoding.
    """

    namespace: str
    pod: str
    mode: Mode
    bucket: Bucket
    window: Window
    steps: float
    requests: float
    """Batch sizes added up: requests / steps is the mean batch."""
    tokens: float
    seconds: float
    seconds_squared: float | None = None
    """Squares of the steps' seconds added up, for their spread; None where the server doesn't tell."""


@dataclass(frozen=True, kw_only=True)
class ProbeSample:
    """How many steps one pod ran in `mode` for the sake of probing, within the window `PROBES`."""

    namespace: str
    pod: str
    mode: Mode
    bucket: Bucket
    steps: float


@dataclass(frozen=True, kw_only=True)
class PodLoad:
    """The newest sample of one pod: when it was taken, and how many requests were running and waiting."""

    namespace: str
    pod: str
    sampled_at: datetime
    running_requests: float | None
    """Requests that were running, or None where the server says nothing about it."""
    queued_requests: float | None = None
    """Requests that waited all through the last minute, or None likewise."""
    series: str = ""
    """Name of the series that the sample belongs to, in the spelling that Prometheus stores."""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """How many rows of an answer were left out, by cause."""

    no_pod: int = 0
    unknown_bucket: int = 0
    unknown_mode: int = 0
    unknown_window: int = 0
    bad_number: int = 0


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """One answer for the whole cluster."""

    taken_at: datetime
    modes: tuple[ModeSample, ...] = field(default=())
    probes: tuple[ProbeSample, ...] = field(default=())
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
    window: str = ""
    series: str = ""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to the queries of `tuning.queries.Queries`, field by field."""

    steps: tuple[Row, ...] = ()
    requests: tuple[Row, ...] = ()
    tokens: tuple[Row, ...] = ()
    seconds: tuple[Row, ...] = ()
    seconds_squared: tuple[Row, ...] = ()
    probe_steps: tuple[Row, ...] = ()
    sampled_at: tuple[Row, ...] = ()
    running_requests: tuple[Row, ...] = ()
    queued_requests: tuple[Row, ...] = ()


def parse_bucket(label: str) -> Bucket | None:
    """Return the engine's bucket with exactly this label, or None."""
    return _BUCKET_BY_LABEL.get(label)


def parse_mode(label: str) -> Mode | None:
    """Return the mode with exactly this label, or None."""
    return Mode(label) if label in tuple(Mode) else None


def parse_window(label: str) -> Window | None:
    """Return the window with exactly this label, or None."""
    return _WINDOW_BY_LABEL.get(label)


def parse_number(text: str) -> float | None:
    """Return a finite number of at least zero, or None for `NaN`, infinities, overflow, signs and everything else."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def assemble(answers: Answers, *, taken_at: datetime) -> MetricsSnapshot:
    """Turn the answers of one pass into samples.

    A pod's mode, bucket and window needs steps, requests, tokens and seconds, all above zero, to count: with one of
    them missing there is no rate at a known batch size.
    """
    ignored: Counter[str] = Counter()
    steps, requests, tokens, seconds, squares = (
        _by_mode(rows, ignored)
        for rows in (answers.steps, answers.requests, answers.tokens, answers.seconds, answers.seconds_squared)
    )
    modes = tuple(
        ModeSample(
            namespace=key.namespace,
            pod=key.pod,
            mode=key.mode,
            bucket=key.bucket,
            window=key.window,
            steps=steps[key],
            requests=requests[key],
            tokens=tokens[key],
            seconds=seconds[key],
            seconds_squared=squares.get(key),
        )
        for key in steps
        if key.window != PROBES and all(sums.get(key, 0.0) > 0 for sums in (steps, requests, tokens, seconds))
    )
    probes = tuple(
        ProbeSample(namespace=key.namespace, pod=key.pod, mode=key.mode, bucket=key.bucket, steps=number)
        for key, number in _by_mode(answers.probe_steps, ignored).items()
        if key.window == PROBES and number > 0
    )
    loads = _loads(answers, ignored)
    return MetricsSnapshot(taken_at=taken_at, modes=modes, probes=probes, loads=loads, ignored=Ignored(**ignored))


@dataclass(frozen=True)
class _Key:
    namespace: str
    pod: str
    mode: Mode
    bucket: Bucket
    window: Window


def _by_mode(rows: Iterable[Row], ignored: Counter[str]) -> dict[_Key, float]:
    numbers: dict[_Key, float] = {}
    for row in rows:
        mode, bucket, number = parse_mode(row.mode), parse_bucket(row.batch_size), parse_number(row.value)
        window = parse_window(row.window)
        if not (row.namespace and row.pod):
            ignored["no_pod"] += 1
        elif bucket is None:
            ignored["unknown_bucket"] += 1
        elif mode is None:
            ignored["unknown_mode"] += 1
        elif window is None:
            ignored["unknown_window"] += 1
        elif number is None:
            ignored["bad_number"] += 1
        else:
            key = _Key(row.namespace, row.pod, mode, bucket, window)
            numbers[key] = max(number, numbers.get(key, 0.0))
    return numbers


def _loads(answers: Answers, ignored: Counter[str]) -> tuple[PodLoad, ...]:
    running, queued = (_by_pod(rows, ignored) for rows in (answers.running_requests, answers.queued_requests))
    newest: dict[tuple[str, str], PodLoad] = {}
    for row in answers.sampled_at:
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
                running_requests=running.get(key),
                queued_requests=queued.get(key),
                series=row.series,
            )
            known = newest.get(key)
            if known is None or (known.sampled_at, known.series) < (load.sampled_at, load.series):
                newest[key] = load
    return tuple(newest.values())


def _by_pod(rows: Iterable[Row], ignored: Counter[str]) -> dict[tuple[str, str], float]:
    numbers: dict[tuple[str, str], float] = {}
    for row in rows:
        number = parse_number(row.value)
        if number is None:
            ignored["bad_number"] += 1
        else:
            numbers[row.namespace, row.pod] = number
    return numbers

"""The figures of one run, from its sums: what was lost, how soon it settled, how calm it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_operator.simulate.ledger import Ledger, Mark
from sglang_specpatch.runtime.probing import drafting_stops

WINDOW_SECONDS = 60
LEAST_DECODE_SECONDS = 6
"""A window with less decoding says nothing."""
SETTLED_LOSS = 0.02
SEEN_SHARE = 0.005
"""Part of the decode time from which on a batch size counts as seen."""

Sums = Callable[[Mark], tuple[float, float]]
"""Decode seconds, and what the better mode would have needed for the same tokens."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Percentages are of decode time; see `ledger` for what regret means."""

    regret_percent: float
    """Mean regret after settling."""
    worst_60s_regret_percent: float
    """The largest regret of any 60 s, after settling."""
    whole_regret_percent: float
    """Mean regret of the whole run, with start and settling."""
    settled_seconds: float | None
    """The longest time, from news to the first 60 s with at most 2 % regret; None: not before the end.

    News are the start, drifts, and the first load in a bucket of batch sizes since then."""
    threshold_changes: int
    threshold_changes_per_hour: float
    probe_percent: float
    """What steps in the mode that the threshold doesn't ask for cost; where that mode was the faster one: nothing."""
    worst_batch_loss_percent: float | None
    """Loss of the last threshold at the batch size where it loses most; each size seen counts alike. None: there is no
    threshold."""
    output_tokens: int
    output_tokens_per_second: float


def figures(ledger: Ledger, thresholds: Sequence[tuple[float, int]], *, by_threshold: bool) -> Figures:
    """Sum up a run; `thresholds` are pairs of second and value in force, one a mark."""
    marks = ledger.marks
    first, last = marks[0], marks[-1]
    seconds = last.at - first.at
    changes = sum(before != after for (_, before), (_, after) in itertools.pairwise(thresholds))
    return Figures(
        regret_percent=_percent(_regret(first, last, _settled)),
        worst_60s_regret_percent=_percent(_worst(marks, _settled)),
        whole_regret_percent=_percent(_regret(first, last, _whole)),
        settled_seconds=_settling(ledger),
        threshold_changes=changes,
        threshold_changes_per_hour=round(changes * 3600 / seconds, 1),
        probe_percent=_percent(last.probe_cost_seconds / max(last.decode_seconds, 1e-9)),
        worst_batch_loss_percent=_percent(_worst_batch(ledger, thresholds[-1][1])) if by_threshold else None,
        output_tokens=round(last.tokens),
        output_tokens_per_second=round(last.tokens / seconds, 1),
    )


def _whole(mark: Mark) -> tuple[float, float]:
    return mark.decode_seconds, mark.better_seconds


def _settled(mark: Mark) -> tuple[float, float]:
    return mark.settled_seconds, mark.settled_better_seconds


def _percent(part: float) -> float:
    return round(100 * part, 2) + 0.0


def _regret(first: Mark, last: Mark, sums: Sums) -> float:
    (begin, better_begin), (end, better_end) = sums(first), sums(last)
    return 1 - (better_end - better_begin) / (end - begin) if end > begin else 0.0


def _windows(marks: Sequence[Mark]) -> list[tuple[Mark, Mark]]:
    """Pairs of marks `WINDOW_SECONDS` apart."""
    size = max(1, round(WINDOW_SECONDS / (marks[1].at - marks[0].at)))
    return list(zip(marks, marks[size:], strict=False))


def _worst(marks: Sequence[Mark], sums: Sums) -> float:
    full = [(a, b) for a, b in _windows(marks) if sums(b)[0] - sums(a)[0] >= LEAST_DECODE_SECONDS]
    return max((_regret(a, b, sums) for a, b in full), default=0.0)


def _settling(ledger: Ledger) -> float | None:
    quiet = [a.at for a, b in _windows(ledger.marks) if _regret(a, b, _whole) <= SETTLED_LOSS]
    longest = 0.0
    for news in ledger.news:
        after = next((at for at in quiet if at >= news), None)
        if after is None:
            # News of the last minute can't be judged.
            if news < ledger.marks[-1].at - WINDOW_SECONDS:
                return None
            continue
        longest = max(longest, after - news)
    return round(longest)


def _worst_batch(ledger: Ledger, threshold: int) -> float:
    least = SEEN_SHARE * sum(ledger.seconds_by_batch.values())
    worst = 0.0
    for batch, (on, off) in ledger.rates_by_batch.items():
        if ledger.seconds_by_batch[batch] >= least:
            worst = max(worst, 1 - (off if drafting_stops(threshold, batch) else on) / max(on, off))
    return worst

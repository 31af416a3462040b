"""A run and its baselines for people, as a table with the decisions and their reasons, and for programs, as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import textwrap
from collections.abc import Sequence

from sglang_operator.simulate.costs import LARGEST_BATCH
from sglang_operator.simulate.curves.curve import Curve, Mode
from sglang_operator.simulate.operators import Decided
from sglang_operator.simulate.run import Result
from sglang_operator.simulate.workloads import Workload

_WIDTH = 110
_MOST_MOVES = 12
_COLUMNS = "policy       regret   worst 60 s   whole run   tokens/s   changes   settled   probes"
_LEGEND = (
    "regret: decode time lost against the better mode at every step, at equal work, after settling; worst 60 s: the "
    "same in the worst minute; whole run: with start and settling; settled: longest time from news to a minute within "
    "2 %; probes: what steps in the other mode cost. adaptive, SGLang's own rule, also changes the draft length and so "
    "can be ahead of both modes."
)


def table(curve: Curve, workload: Workload, result: Result, others: Sequence[Result]) -> str:
    """Every run in a line, then what the tuner decided and why."""
    minutes = f"{workload.seconds / 60:.0f} min"
    lines = [
        f"Curve {curve.name}: {_crossings(curve)} ({curve.source}).",
        f"Workload {workload.name}: {workload.title}; {minutes}, scraped every {workload.scrape_seconds:g} s; "
        f"seed {result.seed}.",
        "",
        _COLUMNS,
        *(_line(each) for each in (result, *others)),
        "",
        *textwrap.wrap(_LEGEND, _WIDTH),
    ]
    moves = [each for each in result.decided if each.moved]
    if result.decided:
        last = result.decided[-1].verdict
        lines += ["", f"Threshold: {_count(len(moves))}, {last.decision.batch_size} in the end."]
        lines += [text for each in moves[:_MOST_MOVES] for text in _move(each)]
        if len(moves) > _MOST_MOVES:
            lines.append(f"… and {len(moves) - _MOST_MOVES} more; --json has all of them.")
        if not moves:
            lines += textwrap.wrap(f"Last verdict: {last.message}", _WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def as_json(workload: Workload, result: Result, others: Sequence[Result]) -> str:
    """All figures of the run, those of the baselines by name, and the decisions."""
    document = {
        "curve": result.curve,
        "workload": workload.name,
        "policy": result.policy.name,
        "seed": result.seed,
        "seconds": result.seconds,
        **dataclasses.asdict(result.figures),
        "decisions": [
            {
                "second": round(each.at, 1),
                "from": each.before.batch_size,
                "to": each.verdict.decision.batch_size,
                "message": each.verdict.message,
            }
            for each in result.decided
            if each.moved
        ],
        "baselines": {each.policy.name: dataclasses.asdict(each.figures) for each in others},
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _crossings(curve: Curve) -> str:
    """Where the better mode changes, as far as a server's batches go."""
    first = curve.better(1)
    found = curve.crossings(LARGEST_BATCH)
    modes = itertools.cycle((Mode.ON, Mode.OFF) if first is Mode.OFF else (Mode.OFF, Mode.ON))
    changes = [f", {mode.value} from {at}" for mode, at in zip(modes, found, strict=False)]
    return f"the better mode is {first.value} at 1 request{''.join(changes) or f' and up to {LARGEST_BATCH}'}"


def _line(result: Result) -> str:
    each = result.figures
    settled = "never" if each.settled_seconds is None else f"{each.settled_seconds:.0f} s"
    return (
        f"{result.policy.name:<11}{each.regret_percent:>6.2f} %{each.worst_60s_regret_percent:>11.2f} %"
        f"{each.whole_regret_percent:>10.2f} %{each.output_tokens_per_second:>11.0f}{each.threshold_changes:>10}"
        f"{settled:>10}{each.probe_percent:>7.2f} %"
    )


def _count(moves: int) -> str:
    return {0: "no change", 1: "1 change"}.get(moves, f"{moves} changes")


def _move(each: Decided) -> list[str]:
    minute, second = divmod(round(each.at), 60)
    text = (
        f"{minute:3}:{second:02}  {each.before.batch_size} → {each.verdict.decision.batch_size}  {each.verdict.message}"
    )
    return textwrap.wrap(text, _WIDTH, subsequent_indent="        ", drop_whitespace=True)

"""The tuner against every workload and curve, with its baselines: writes the tables and pictures of the documentation.

    python3 hack/bench/tuner.py [--seed N] [--jobs N] [--curves a,b] [--workloads W1,W2] [--print]

With --curves, --workloads or --print the tables go to the standard output and no file is touched.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "operator"))

from sglang_operator.simulate import picture  # noqa: E402 - the folder above is no installed package
from sglang_operator.simulate.curves.families import curve_by_name, curve_names  # noqa: E402
from sglang_operator.simulate.figures import Figures  # noqa: E402
from sglang_operator.simulate.policies import AUTO, BASELINES, Kind, parse_policy  # noqa: E402
from sglang_operator.simulate.run import run, settling_seconds  # noqa: E402
from sglang_operator.simulate.workloads import workload, workload_names  # noqa: E402

PAGE, OVERVIEW = ROOT / "docs/tuning-results.md", ROOT / "docs/tuning.md"
IMAGES = ROOT / "docs/images"
PICTURES = (("mid", "W5"), ("founding", "W3"), ("strong-draft", "W8"), ("mid", "W9"))
BEGIN, END = "<!-- written by hack/bench/tuner.py: begin -->", "<!-- written by hack/bench/tuner.py: end -->"
NAMES = tuple(policy.name for policy in BASELINES)
_NEVER = "never"
FIXED = tuple(policy.name for policy in BASELINES if policy.kind is Kind.FIXED)


@dataclass(frozen=True)
class Row:
    """One curve under one workload: the tuner's figures, and those of the baselines by name."""

    curve: str
    workload: str
    auto: Figures
    baselines: dict[str, Figures]

    @property
    def best_fixed(self) -> str:
        """The fixed threshold that lost least in the whole run, known only afterwards."""
        return min(FIXED, key=lambda name: self.baselines[name].whole_regret_percent)

    @property
    def behind_best_fixed(self) -> float:
        """Points of whole-run regret by which the tuner lost more than that."""
        return self.auto.whole_regret_percent - self.baselines[self.best_fixed].whole_regret_percent


@dataclass(frozen=True)
class Goal:
    """A bound that a row's figure should keep; figure None: the row has no such figure."""

    title: str
    figure: Callable[[Row], float | None]
    bound: Callable[[Row], float]
    unit: str = " %"

    def missed(self, row: Row) -> bool:
        """Whether the row has the figure and it is out of bounds."""
        value = self.figure(row)
        return value is not None and value > self.bound(row) + 1e-9

    def words(self, row: Row) -> str:
        """The figure with its unit."""
        text = _number(self.figure(row))
        return text if text == _NEVER else f"{text}{self.unit}"


def _settled(row: Row) -> float:
    value = row.auto.settled_seconds
    return float("inf") if value is None else value


def _steady_changes(row: Row) -> float | None:
    """Changes an hour under the workloads whose load and crossover hold still for most of the time."""
    return row.auto.threshold_changes_per_hour if row.workload == "W8" else None


def _behind_off(row: Row) -> float | None:
    """Points of whole-run regret behind never drafting, where that was right at every step."""
    off = row.baselines["off"].whole_regret_percent
    return row.auto.whole_regret_percent if off == 0 else None


GOALS = {
    "regret": Goal("regret after settling ≤ 2 %", lambda row: row.auto.regret_percent, lambda _: 2),
    "worst": Goal(
        "regret in the worst 60 s, after settling, ≤ 5 %", lambda row: row.auto.worst_60s_regret_percent, lambda _: 5
    ),
    "settled": Goal(
        "settled within 120 s or 5 scrapes of news",
        _settled,
        lambda row: settling_seconds(workload(row.workload)),
        " s",
    ),
    "probes": Goal("probes cost ≤ 0.5 %", lambda row: row.auto.probe_percent, lambda _: 0.5),
    "changes": Goal("changes an hour in steady load (W8) ≤ 2", _steady_changes, lambda _: 2, ""),
    "size": Goal("loss at any batch size seen ≤ 5 %", lambda row: row.auto.worst_batch_loss_percent, lambda _: 5),
    "fixed": Goal(
        "whole run at most 2 points behind the best fixed threshold", lambda row: row.behind_best_fixed, lambda _: 2
    ),
    "off": Goal(
        "where never drafting is right at every step, whole run at most 1 point behind it", _behind_off, lambda _: 1
    ),
}


def measure(task: tuple[str, str, int]) -> Row:
    """Run one curve under one workload, once under each policy."""
    curve, name, seed = task
    found = {
        policy.name: run(curve_by_name(curve), workload(name), policy, seed=seed).figures
        for policy in (AUTO, *BASELINES)
    }
    auto = found.pop(AUTO.name)
    return Row(curve, name, auto, found)


def overview(rows: Sequence[Row]) -> str:
    """Every policy's mean, and how often each goal was met."""
    goals = [f"| {title} | {met} of {judged} |" for title, met, judged, _ in _judged(rows)]
    return "\n".join([*_means(rows), "", "| goal | met in |", "|---|--:|", *goals])


def tables(rows: Sequence[Row]) -> str:
    """The whole page's part that is written here."""
    goals = [f"| {title} | {met} of {judged} | {missed or '–'} |" for title, met, judged, missed in _judged(rows)]
    parts = ["| goal | met | missed by |", "|---|---|---|", *goals, "", *_means(rows), *_means_by_workload(rows)]
    for name in dict.fromkeys(row.workload for row in rows):
        parts += ["", f"### {name}: {workload(name).title}", "", _of_workload([r for r in rows if r.workload == name])]
    return "\n".join(parts)


def _judged(rows: Sequence[Row]) -> Iterator[tuple[str, int, int, str]]:
    """Each goal's title, how many runs met it, of how many, and which did not."""
    for goal in GOALS.values():
        judged = [row for row in rows if goal.figure(row) is not None]
        missed = [row for row in judged if goal.missed(row)]
        names = (f"{row.workload} {row.curve} ({goal.words(row)})" for row in missed)
        yield goal.title, len(judged) - len(missed), len(judged), ", ".join(names)
    ahead = [name for name in NAMES if _mean(rows, name) <= _mean(rows, None)]
    yield "mean regret of all runs below that of every baseline", len(NAMES) - len(ahead), len(NAMES), ", ".join(ahead)


def _means(rows: Sequence[Row]) -> list[str]:
    """Mean and largest whole-run regret of every policy."""
    every = (None, *NAMES)
    largest = [max(_figures(row, name).whole_regret_percent for row in rows) for name in every]
    return [
        "| whole-run regret in % | auto | " + " | ".join(NAMES) + " |",
        "|---|" + "--:|" * len(every),
        f"| mean of {len(rows)} runs | {' | '.join(_number(_mean(rows, name)) for name in every)} |",
        f"| largest | {' | '.join(map(_number, largest))} |",
    ]


def _means_by_workload(rows: Sequence[Row]) -> list[str]:
    lines = []
    for title in dict.fromkeys(row.workload for row in rows):
        part = [row for row in rows if row.workload == title]
        lines.append(f"| mean of {title} | {' | '.join(_number(_mean(part, name)) for name in (None, *NAMES))} |")
    return lines


def _figures(row: Row, name: str | None) -> Figures:
    return row.auto if name is None else row.baselines[name]


def _mean(rows: Iterable[Row], name: str | None) -> float:
    return statistics.fmean(_figures(row, name).whole_regret_percent for row in rows)


def _of_workload(rows: Sequence[Row]) -> str:
    titles = ("regret", "worst 60 s", "settled s", "changes/h", "probes", "worst size", "whole run", *NAMES)
    lines = ["| curve | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    for row in rows:
        auto = row.auto
        cells = [
            _cell(row, "regret", auto.regret_percent),
            _cell(row, "worst", auto.worst_60s_regret_percent),
            _cell(row, "settled", auto.settled_seconds),
            _cell(row, "changes", auto.threshold_changes_per_hour),
            _cell(row, "probes", auto.probe_percent),
            _cell(row, "size", auto.worst_batch_loss_percent),
            _cell(row, "fixed", auto.whole_regret_percent),
            *(_number(row.baselines[name].whole_regret_percent) for name in NAMES),
        ]
        lines.append(f"| {row.curve} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row, goal: str, value: float | None) -> str:
    text = _number(value)
    return f"**{text}**" if GOALS[goal].missed(row) else text


def _number(value: float | None) -> str:
    if value is None or value == float("inf"):
        return _NEVER
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(task: tuple[str, str, int]) -> None:
    """Write one picture."""
    curve, name, seed = task
    result = run(curve_by_name(curve), workload(name), parse_policy("auto"), seed=seed)
    picture.draw(result, IMAGES / f"tuner-{curve}-{name}.svg")


def write(page: pathlib.Path, text: str) -> None:
    """Put the tables between the page's markers."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> int:
    """Measure, and write or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--curves", default=",".join(curve_names()))
    parser.add_argument("--workloads", default=",".join(workload_names()))
    parser.add_argument("--print", action="store_true", dest="only_print")
    options = parser.parse_args()
    curves, names = options.curves.split(","), options.workloads.split(",")
    started = time.monotonic()
    tasks = [(curve, name, options.seed) for name in names for curve in curves]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = []
        for row in pool.map(measure, tasks):
            rows.append(row)
            print(f"\r{len(rows)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
        print(f"\r{len(rows)} of {len(tasks)} in {time.monotonic() - started:.0f} s", file=sys.stderr)
        if options.only_print or tuple(curves) != curve_names() or tuple(names) != workload_names():
            print(tables(rows))
            return 0
        IMAGES.mkdir(exist_ok=True)
        list(pool.map(draw, [(*each, options.seed) for each in PICTURES]))
    write(PAGE, tables(rows))
    write(OVERVIEW, overview(rows))
    pages = " and ".join(str(page.relative_to(ROOT)) for page in (PAGE, OVERVIEW))
    print(f"Wrote {pages}, and {len(PICTURES)} pictures, in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A run as a picture: throughput of the policy, of both modes and of the oracle over time; the threshold below.

matplotlib is an extra of the package and is imported when a picture is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_operator.simulate.ledger import Mark
from sglang_operator.simulate.run import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
BIN_MARKS = 3
"""Marks that one point of a line spans."""
_ALWAYS = 512
"""Where the threshold 0 is drawn: it drafts at every batch size."""
# Okabe and Ito's colours, which all eyes tell apart.
_GREY, _BLUE, _ORANGE, _GREEN = "#555555", "#0072B2", "#E69F00", "#009E73"


class PictureError(Exception):
    """No picture can be made; the message says why and what to do."""


def check(file: Path) -> None:
    """Raise PictureError if the file's name or the installed packages allow no picture."""
    if file.suffix not in FORMATS:
        raise PictureError(f"--picture {file}: the name must end in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise PictureError(
            "--picture needs matplotlib, which is not installed: pip install 'sglang-operator[simulate]', or leave "
            "--picture out"
        ) from error


def draw(result: Result, file: Path) -> None:
    """Write the picture. Raises PictureError if it can't be made, OSError if it can't be written."""
    check(file)
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text, and the same run gives the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sglang-operator", "font.size": 9}):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _throughput(above, result)
        _threshold(below, result)
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, metadata=metadata, dpi=120)


def _throughput(axes: Axes, result: Result) -> None:
    marks = result.marks[::BIN_MARKS]

    def line(tokens: Callable[[Mark], float], label: str, colour: str, width: float, style: str) -> None:
        points = [
            (b.at / 60, (tokens(b) - tokens(a)) / (b.decode_seconds - a.decode_seconds))
            for a, b in itertools.pairwise(marks)
            if b.decode_seconds - a.decode_seconds > 0
        ]
        axes.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=width, linestyle=style)

    line(lambda mark: mark.best_tokens, "better mode at every step", _GREY, 3.0, "-")
    line(lambda mark: mark.on_tokens, "always drafting", _BLUE, 1.0, "--")
    line(lambda mark: mark.off_tokens, "never drafting", _ORANGE, 1.0, "--")
    line(lambda mark: mark.tokens, result.policy.name, _GREEN, 1.2, "-")
    axes.set_ylabel("output tokens/s\nwhile decoding")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{result.curve}, {result.workload}, seed {result.seed}", fontsize=9)
    axes.legend(fontsize=8, framealpha=0.6)


def _threshold(axes: Axes, result: Result) -> None:
    pairs = list(itertools.pairwise(result.marks[::BIN_MARKS]))
    busy = [(a, b) for a, b in pairs if b.decode_seconds > a.decode_seconds]
    sizes = [(b.at / 60, (b.requests - a.requests) / (b.decode_seconds - a.decode_seconds)) for a, b in busy]
    axes.plot(*zip(*sizes, strict=True), label="requests decoding together", color=_GREY, linewidth=1.0)
    if result.policy.has_threshold:
        steps = [(at / 60, value or _ALWAYS) for at, value in result.thresholds]
        axes.step(*zip(*steps, strict=True), where="post", label="threshold", color=_GREEN, linewidth=1.6)
    axes.set_yscale("log", base=2)
    ticks = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    axes.set_ylim(0.8, 1.3 * _ALWAYS)
    axes.set_yticks([*ticks, _ALWAYS], [*map(str, ticks), "always"])
    axes.set_xlabel("minutes")
    axes.legend(fontsize=8, framealpha=0.6, loc="upper left")

"""A curve from a CSV file, so that a measured engine can be simulated without touching code.

Columns `batch_size,mode,tokens_per_second`, one line per point, lines starting with `#` ignored. Modes are `on`, `off`
and, optionally, `none` (a server started without speculation; `off` is taken where it is missing). Rates are decode
rates: output tokens per second of all requests together, prefill not counted.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

from sglang_operator.simulate.curves.curve import Curve, CurveError, Mode, line_from_rates

_COLUMNS = ("batch_size", "mode", "tokens_per_second")
_MAX_POINTS = 10_000


def curve_from_csv(path: Path, *, accept_length: float) -> Curve:
    """Read a curve whose `on` rates were measured at the mean acceptance length `accept_length`.

    Raises CurveError naming file, line and the right form; OSError if the file can't be read.
    """
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) > _MAX_POINTS:
        raise CurveError(f"{path}: more than {_MAX_POINTS} points")
    header, *rows = list(csv.reader(lines)) or [[]]
    if tuple(header) != _COLUMNS:
        raise CurveError(f"{path}: the first line must be {','.join(_COLUMNS)}")
    rates: dict[Mode, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        mode, batch, rate = _point(path, row)
        rates[mode].append((batch, rate))
    if Mode.ON not in rates or Mode.OFF not in rates:
        raise CurveError(f"{path}: points of both modes on and off are needed")
    on = line_from_rates(tuple(rates[Mode.ON]), accept_length)
    off = line_from_rates(tuple(rates[Mode.OFF]), 1.0)
    none = line_from_rates(tuple(rates[Mode.NONE]), 1.0) if Mode.NONE in rates else off
    return Curve(path.stem, f"file {path.name}", on, off, none, accept_length)


def _point(path: Path, row: list[str]) -> tuple[Mode, int, float]:
    try:
        batch_text, mode_text, rate_text = row
        mode, batch, rate = Mode(mode_text), int(batch_text), float(rate_text)
        if not (batch > 0 and rate > 0 and math.isfinite(rate)):
            raise ValueError("out of range")
    except ValueError as error:
        raise CurveError(
            f"{path}: {','.join(row)!r} is no point; the form is 8,on,1943.5 with a positive whole batch size, a mode "
            "on, off or none, and a positive rate"
        ) from error
    return mode, batch, rate

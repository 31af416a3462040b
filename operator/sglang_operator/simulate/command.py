"""`sglang-operator simulate`: one workload under one policy and its baselines, in seconds and without a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from sglang_operator.simulate import picture, report
from sglang_operator.simulate.costs import LONGEST_ACCEPT_LENGTH
from sglang_operator.simulate.curves.csvfile import curve_from_csv
from sglang_operator.simulate.curves.curve import Curve, CurveError
from sglang_operator.simulate.curves.families import MEASURED_ACCEPT_LENGTH, curve_by_name, curve_names
from sglang_operator.simulate.policies import BASELINES, ORACLE, parse_policy
from sglang_operator.simulate.run import run
from sglang_operator.simulate.workloads import workload, workload_names

_Value = TypeVar("_Value")


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments say and print it; returns the exit code: 0, or 2 for arguments that can't be used."""
    parser = _parser()
    options = parser.parse_args(arguments)
    curve = _curve(options.curve, options.accept_length, parser.error)
    if options.picture:
        try:
            picture.check(options.picture)
        except picture.PictureError as error:
            parser.error(str(error))
    result = run(curve, options.workload, options.policy, seed=options.seed)
    compared = [policy for policy in (*BASELINES, ORACLE) if policy != options.policy]
    others = [run(curve, options.workload, policy, seed=options.seed) for policy in compared]
    if options.json:
        print(report.as_json(options.workload, result, others))
    else:
        print(report.table(curve, options.workload, result, others))
    if options.picture:
        try:
            picture.draw(result, options.picture)
        except OSError as error:
            print(f"{options.picture} can't be written: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-operator simulate",
        description=__doc__,
        epilog=f"Workloads: {'; '.join(f'{name} {workload(name).title}' for name in workload_names())}.",
    )
    parser.add_argument(
        "--curve",
        required=True,
        metavar="NAME|FILE.csv",
        help=f"what steps cost: {', '.join(curve_names())}, or a file with columns batch_size,mode,tokens_per_second",
    )
    parser.add_argument(
        "--workload", required=True, type=_read(workload), metavar="W1…W10", help="what load does, see below"
    )
    parser.add_argument(
        "--policy",
        default="auto",
        type=_read(parse_policy),
        help="auto (the operator's tuner, default), on, off, fixed:N, adaptive (SGLang's own), bandit, oracle",
    )
    parser.add_argument("--seed", type=int, default=0, help="of requests, noise and scrape times (default 0)")
    parser.add_argument(
        "--accept-length",
        type=_read(_accept_length),
        default=MEASURED_ACCEPT_LENGTH,
        metavar="TOKENS",
        help="mean output tokens of a request and drafting step at which the rates of FILE.csv were measured, 1 to "
        f"{LONGEST_ACCEPT_LENGTH} (default {MEASURED_ACCEPT_LENGTH:g})",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.svg|FILE.png", help="draw the run (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _read(function: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Let argparse print the function's own sentence."""

    def convert(text: str) -> _Value:
        try:
            return function(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _accept_length(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= LONGEST_ACCEPT_LENGTH:
        raise ValueError(f"{text!r} is no number from 1 to {LONGEST_ACCEPT_LENGTH}, for example 2.4")
    return value


def _curve(text: str, accept_length: float, refuse: Callable[[str], NoReturn]) -> Curve:
    try:
        return curve_from_csv(Path(text), accept_length=accept_length) if text.endswith(".csv") else curve_by_name(text)
    except OSError as error:
        refuse(f"--curve {text}: {error.strerror}")
    except UnicodeDecodeError:
        refuse(f"--curve {text}: no text in UTF-8; the first line must be batch_size,mode,tokens_per_second")
    except CurveError as error:
        refuse(f"--curve: {error}")

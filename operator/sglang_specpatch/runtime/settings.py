"""The settings that the patch adds to SGLang: their names, and which values they take on the command line and live."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

THRESHOLD = "speculative_disable_batch_threshold"
PROBE_PERMILLE = "speculative_probe_permille"
OFF_PATH = "speculative_off_path"

MAX_THRESHOLD = 1_000_000
MAX_PROBE_PERMILLE = 500
OFF_PATHS = ("auto", "decode", "zero-step")

LIVE = (THRESHOLD, PROBE_PERMILLE)
"""What a live update may change; the rest is settled at start."""

ALL = (*LIVE, OFF_PATH)

HIGHEST = {THRESHOLD: MAX_THRESHOLD, PROBE_PERMILLE: MAX_PROBE_PERMILLE}


def refusal(name: str, value: object) -> str | None:
    """Say why a setting can't have a value, or None if it can; a live one takes a plain int in its range."""
    if name == OFF_PATH:
        return None if value in OFF_PATHS else f"{name} must be one of {', '.join(OFF_PATHS)}, got {value!r}"
    if type(value) is not int:
        return f"{name} must be a whole number, got {value!r} ({type(value).__name__})"
    if not 0 <= value <= HIGHEST[name]:
        return f"{name} must be from 0 to {HIGHEST[name]}, got {value}"
    return None


def update_refusal(updates: Mapping[str, object]) -> str | None:
    """Say what is wrong with the first bad live setting of an update; None when all that it holds are good."""
    problems = (refusal(name, updates[name]) for name in LIVE if name in updates)
    return next((problem for problem in problems if problem is not None), None)


def parse_threshold(text: str) -> int:
    """Read the command-line value; argparse prints the sentence of the raised ArgumentTypeError."""
    return _whole_number(text, MAX_THRESHOLD, "0 = always speculate, 1 = never, N = stop drafting at N requests")


def parse_probe_permille(text: str) -> int:
    """Read the command-line value; argparse prints the sentence of the raised ArgumentTypeError."""
    return _whole_number(text, MAX_PROBE_PERMILLE, "0 = no probing, N = about N of 1000 decode steps")


def parse_off_path(text: str) -> str:
    """Read the command-line value; argparse prints the sentence of the raised ArgumentTypeError."""
    if text not in OFF_PATHS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(OFF_PATHS)}, got {text!r}")
    return text


def _whole_number(text: str, highest: int, meaning: str) -> int:
    plain = text.isascii() and text.isdigit() and len(text) <= len(str(highest))
    if not (plain and int(text) <= highest):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {highest} ({meaning}), got {text!r}")
    return int(text)

"""The settings that the patch adds to SGLang: their names, and which values they take on the command line and live."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

THRESHOLD = "speculative_disable_batch_threshold"
PROBE_PERMILLE = "speculative_probe_permille"
OFF_PATH = "speculative_off_path"
VERIFY_TILE = "speculative_verify_tile"

MAX_THRESHOLD = 1_000_000
MAX_PROBE_PERMILLE = 500
CHOICES = {OFF_PATH: ("auto", "decode", "zero-step"), VERIFY_TILE: ("default", "16x128")}
"""The words that a setting takes; the first one is the default."""

LIVE = (THRESHOLD, PROBE_PERMILLE)
"""What a live update may change; the rest is settled at start."""

ALL = (*LIVE, *CHOICES)

HIGHEST = {THRESHOLD: MAX_THRESHOLD, PROBE_PERMILLE: MAX_PROBE_PERMILLE}


def refusal(name: str, value: object) -> str | None:
    """Say why a setting can't have a value, or None if it can; a live one takes a plain int in its range."""
    if name in CHOICES:
        words = CHOICES[name]
        return None if value in words else f"{name} must be one of {', '.join(words)}, got {value!r}"
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
    return _one_of(CHOICES[OFF_PATH], text)


def parse_verify_tile(text: str) -> str:
    """Read the command-line value; argparse prints the sentence of the raised ArgumentTypeError."""
    return _one_of(CHOICES[VERIFY_TILE], text)


def _one_of(words: Sequence[str], text: str) -> str:
    if text not in words:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(words)}, got {text!r}")
    return text


def _whole_number(text: str, highest: int, meaning: str) -> int:
    plain = text.isascii() and text.isdigit() and len(text) <= len(str(highest))
    if not (plain and int(text) <= highest):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {highest} ({meaning}), got {text!r}")
    return int(text)

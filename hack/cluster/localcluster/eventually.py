"""Waiting with a deadline, and a failure that says what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(
    look: Callable[[], Value],
    accept: Callable[[Value], bool] = bool,
    *,
    within_seconds: float,
    every_seconds: float = 0.5,
    what: str,
) -> Value:
    """Look until the value is accepted, and return it.

    `AssertionError` and `subprocess.CalledProcessError` of `look` count as "not yet".

    Raises:
        AssertionError: not within the deadline; names `what` was awaited and the last value or error.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        seen: object
        try:
            value = look()
            if accept(value):
                return value
            seen = value
        except (AssertionError, RuntimeError, LookupError) as error:
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds:.0f} s: {what}; last seen: {seen!r:.3000}")
        time.sleep(every_seconds)

"""What the demo prints: numbered steps, the commands a person would type, and what came back."""

from __future__ import annotations

import sys
import time


class Narrator:
    """Prints to standard output, each step with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = 0

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def step(self, title: str) -> None:
        """Begin a step."""
        self._steps += 1
        self._print(f"\n[{self.elapsed_seconds:5.0f} s] {self._steps}. {title}")

    def command(self, *words: str) -> None:
        """Show a command that is about to run."""
        self._print(f"    $ {' '.join(words)}")

    def output(self, text: str) -> None:
        """Show what came back, indented."""
        for line in text.rstrip().splitlines():
            self._print(f"      {line}")

    def say(self, text: str) -> None:
        """Say a sentence."""
        self._print(f"    {text}")

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

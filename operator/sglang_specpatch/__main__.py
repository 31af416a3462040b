"""Patch the SGLang that a server started here would load.

Logs for people go to stdout; `--json` adds the result as one line at the end, `--termination-log` writes it to a file.
Exit codes: 0 done, 2 usage, 3 refused, 4 import check failed, 5 not writable or no space.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .commands.shared import say
from .options import parser
from .result import TERMINATION_LOG_BYTES, Outcome, Refusal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = parser(__doc__).parse_args(arguments)
    try:
        outcome: Outcome = options.command(options)
    except Refusal as refusal:
        outcome = Outcome.refused(refusal)
        say(f"{outcome.result}: {outcome.reason.value}: {outcome.message}")
    if getattr(options, "termination_log", None) is not None:
        _write_termination_log(options.termination_log, outcome)
    if options.json:
        say(outcome.line())
    return outcome.exit_code


def _write_termination_log(name: str, outcome: Outcome) -> None:
    try:
        Path(name).write_text(outcome.line(TERMINATION_LOG_BYTES), encoding="utf-8")
    except OSError as error:
        say(f"warning: {name} can't be written: {error}")


if __name__ == "__main__":
    raise SystemExit(main())

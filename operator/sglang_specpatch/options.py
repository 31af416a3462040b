"""The command line: commands, options, and their words of help."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .commands.apply import apply
from .commands.check import check
from .commands.run import run
from .commands.show import show
from .commands.undo import undo
from .result import Outcome

CHECK_TIMEOUT_SECONDS = 3600.0

Command = Callable[[argparse.Namespace], Outcome]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser; a parsed `command` is the function to call with the options."""
    made = argparse.ArgumentParser(
        prog="specpatch",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")

    applying = _command(commands, "apply", apply)
    _add_form(applying, "patch a copy in this writable directory", "patch the installed package itself")
    applying.add_argument("--no-import-check", action="store_true", help="do not prove the result; `run` will warn")
    applying.add_argument("--termination-log", metavar="FILE", help="also write the JSON result there")
    _add_timeout(applying)

    checking = _command(commands, "check", check)
    checking.add_argument("--tree", metavar="DIR", help="a patched copy; else what a server started here loads")
    _add_timeout(checking)

    showing = _command(commands, "show", show)
    showing.add_argument("--to", metavar="DIR", help="a patched directory to leave out of the search for the source")

    _add_form(_command(commands, "undo", undo), "remove the patched copy in this directory", "restore the originals")

    running = _command(commands, "run", run)
    running.add_argument("--tree", metavar="DIR", help="a patched copy; else what a server started here loads")
    running.add_argument("server", nargs=argparse.REMAINDER, metavar="-- CMD", help="the server's command line")
    return made


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, action: Command
) -> argparse.ArgumentParser:
    words = (action.__doc__ or "").splitlines()[0]
    made = commands.add_parser(name, help=words, description=words, allow_abbrev=False)
    made.add_argument("--json", action="store_true", help="print the result as one JSON line at the end")
    made.set_defaults(command=action)
    return made


def _add_form(command: argparse.ArgumentParser, copy_help: str, in_place_help: str) -> None:
    forms = command.add_mutually_exclusive_group(required=True)
    forms.add_argument("--to", metavar="DIR", help=copy_help)
    forms.add_argument("--in-place", action="store_true", help=in_place_help)


def _add_timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--check-timeout",
        type=float,
        default=CHECK_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="limit of the import check",
    )

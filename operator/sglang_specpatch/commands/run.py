"""`run`: become the server, once it is certain that it will load the patched tree."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .. import bytecode
from ..locate import locate, search_path
from ..names import PACKAGE
from ..result import Outcome, Reason, Refusal
from .shared import located_root, say, verified

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def run(options: argparse.Namespace) -> Outcome:
    """Replace this process by a server that loads the patched tree."""
    command = options.server[1:] if options.server[:1] == ["--"] else options.server
    if not command:
        raise Refusal(Reason.SOURCE_NOT_FOUND, "No command to run was given. Put the server's command line after `--`.")
    root = Path(options.tree).absolute() if options.tree else located_root()
    manifest = verified(root)
    if manifest.import_check != "passed":
        say(f"warning: {root} was patched without the import check")
    environment = dict(os.environ)
    if options.tree:
        environment["PYTHONPATH"] = search_path(environment, first=root)
    _require_loaded(root, command, environment)
    _require_fresh_bytecode([root / PACKAGE / path for path in manifest.members if path.endswith(".py")])
    say(f"SGLang {manifest.release} patched, generation {manifest.generation}, from {root}")
    if options.json:
        say(Outcome.patched("", release=manifest.release, path=manifest.source, digest=manifest.digest).line())
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - becoming the server is the point
    except OSError as error:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND, f"{command[0]} can't be started: {error}. Check the command after `--`."
        ) from error


def interpreter_of(command: Sequence[str]) -> list[str]:
    """Return the interpreter of a command line with the options before its module or script; empty if it is none.

    The options count: with `-I` or `-E` Python does not look at PYTHONPATH.
    """
    if not Path(command[0]).name.startswith("python"):
        return []
    options: list[str] = []
    rest = iter(command[1:])
    for item in rest:
        if not item.startswith("-") or item == "-" or item.startswith(("-m", "-c")):
            break
        options.append(item)
        if item in _WITH_VALUE:
            options.append(next(rest, ""))
    return [shutil.which(command[0]) or command[0], *options]


def _require_loaded(root: Path, command: Sequence[str], environment: dict[str, str]) -> None:
    loaded = locate(environment, interpreter=interpreter_of(command))
    if not loaded.package.samefile(root / PACKAGE):
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"`{' '.join(command[:2])} …` started here would load {loaded.package}, not {root / PACKAGE}: something "
            "comes before PYTHONPATH. Start in another working directory, without the options -I and -E.",
            release=loaded.release,
            path=str(loaded.package),
        )


def _require_fresh_bytecode(members: Sequence[Path]) -> None:
    staying = bytecode.drop_stale(members)
    if staying:
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{staying[0]} would be run in place of the patched source, and can't be removed. Delete it.",
            path=str(staying[0]),
        )

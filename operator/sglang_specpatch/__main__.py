"""Command line of the patcher: `apply`, `check`, `show` and `run`.

Logs for people go to stdout; `--json` adds the result as one line at the end, `--termination-log` writes it to a
file. Exit codes: 0 patched and proven, 2 usage, 3 refused, 4 check failed, 5 not writable or no space.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import tree
from .gate import prove
from .locate import Found, locate
from .manifest import Manifest, differences
from .names import GENERATION, PACKAGE
from .result import TERMINATION_LOG_BYTES, Outcome, Reason, Refusal

CHECK_TIMEOUT_SECONDS = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        outcome: Outcome = options.command(options)
    except Refusal as refusal:
        outcome = Outcome.refused(refusal)
        _say(f"{outcome.result}: {outcome.reason.value}: {outcome.message}")
    if getattr(options, "termination_log", None) is not None:
        _write_termination_log(options.termination_log, outcome)
    if options.json:
        _say(outcome.line())
    return outcome.exit_code


def apply(options: argparse.Namespace) -> Outcome:
    """Put a proven patched copy of SGLang into a directory; a second run changes nothing."""
    target = Path(options.to).absolute()
    source = _source(without=target)
    if target == source.package or source.package in target.parents or target == source.package.parent:
        raise Refusal(
            Reason.SOURCE_NOT_WRITABLE,
            f"{target} is the place of the source tree itself. Give an empty directory of another place.",
            release=source.release,
            path=str(source.package),
        )
    with tree.locked(target):
        blueprint = tree.draw(source, import_check="skipped" if options.no_import_check else "passed")
        in_place = tree.is_in_place(blueprint, target)
        member_states = tree.states(blueprint, target)
        proven = target if in_place else tree.build(blueprint, target)
        tree.drop_bytecode(blueprint.manifest, proven)
        try:
            if not options.no_import_check:
                _prove(proven, blueprint.manifest, options.check_timeout)
        except BaseException:
            tree.discard(target)
            raise
        if not in_place:
            tree.commit(blueprint, target)
    for path, state in member_states.items():
        _say(f"  {state}: {PACKAGE}/{path}")
    return _patched(blueprint.manifest, target, "already in place" if in_place else "put in place")


def check(options: argparse.Namespace) -> Outcome:
    """Verify the digests of a patched tree and prove it again."""
    target = Path(options.tree).absolute() if options.tree else locate(dict(os.environ)).package.parent
    manifest = _verified(target)
    _prove(target, manifest, options.check_timeout)
    return _patched(manifest, target, "unchanged and proven")


def show(options: argparse.Namespace) -> Outcome:
    """Print what would change, as a diff; write nothing."""
    source = _source(without=Path(options.to).absolute() if options.to else None)
    blueprint = tree.draw(source, import_check="skipped")
    for path, data in blueprint.written.items():
        place = source.package / path
        before = place.read_text(encoding="utf-8").splitlines(keepends=True) if place.exists() else []
        after = data.decode().splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(before, after, f"a/{PACKAGE}/{path}", f"b/{PACKAGE}/{path}"))
    return Outcome.patched(
        f"{len(blueprint.written)} files would be written; nothing was.",
        release=source.release,
        path=str(source.package),
        digest=blueprint.manifest.digest,
    )


def run(options: argparse.Namespace) -> Outcome:
    """Replace this process by a server that loads the patched tree."""
    target = Path(options.tree).absolute()
    manifest = _verified(target)
    if manifest.import_check != "passed":
        _say(f"warning: {target} was patched without the import check")
    environment = dict(os.environ)
    loaded = locate(environment, first=target)
    if not loaded.package.samefile(target / PACKAGE):
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"A server started here would load {loaded.package}, not {target / PACKAGE}: the working directory comes "
            "first. Start in another working directory.",
            release=loaded.release,
            path=str(loaded.package),
        )
    command = options.server[1:] if options.server[:1] == ["--"] else options.server
    paths = [str(target), *filter(None, [environment.get("PYTHONPATH", "")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    _say(f"SGLang {manifest.release} patched, generation {manifest.generation}, from {target}")
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - becoming the server is the point
    except OSError as error:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND, f"{command[0]} can't be started: {error}. Check the command after `--`."
        ) from error


def _source(*, without: Path | None) -> Found:
    source = locate(dict(os.environ), without=without)
    _say(f"SGLang {source.release or 'of unknown release'} in {source.package}")
    return source


def _prove(target: Path, manifest: Manifest, timeout_seconds: float) -> None:
    _say(f"import check of {target / PACKAGE}")
    python_members = tuple(path for path in manifest.members if path.endswith(".py"))
    prove(
        target,
        python_members,
        dict(os.environ),
        say=_say,
        timeout_seconds=timeout_seconds,
        release=manifest.release,
    )


def _verified(target: Path) -> Manifest:
    manifest = Manifest.read(target)
    if manifest is None:
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{target} holds no patched SGLang (no readable manifest). Run `apply --to {target}` first.",
            path=str(target),
        )
    if manifest.generation != GENERATION:
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{target} was patched by generation {manifest.generation}, this program is generation {GENERATION}. "
            f"Run `apply --to {target}` with this program.",
            release=manifest.release,
            path=str(target),
        )
    problems = differences(target, manifest)
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{target / PACKAGE} is not as it was patched: {', '.join(problems[:5])}{more}. "
            f"Run `apply --to {target}` again.",
            release=manifest.release,
            path=str(target),
        )
    return manifest


def _patched(manifest: Manifest, target: Path, state: str) -> Outcome:
    message = f"SGLang {manifest.release}: {len(manifest.members)} files patched in {target / PACKAGE}, {state}."
    if manifest.import_check != "passed":
        message += " The import check was skipped."
    _say(message)
    return Outcome.patched(message, release=manifest.release, path=manifest.source, digest=manifest.digest)


def _write_termination_log(name: str, outcome: Outcome) -> None:
    try:
        Path(name).write_text(outcome.line(TERMINATION_LOG_BYTES), encoding="utf-8")
    except OSError as error:
        _say(f"warning: {name} can't be written: {error}")


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specpatch", description=__doc__, allow_abbrev=False)
    parser.set_defaults(json=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action: object, description: str | None) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=(description or "").splitlines()[0], allow_abbrev=False)
        made.set_defaults(command=action)
        return made

    def proving(made: argparse.ArgumentParser) -> None:
        made.add_argument("--json", action="store_true", help="print the result as one JSON line at the end")
        made.add_argument(
            "--check-timeout",
            type=float,
            default=CHECK_TIMEOUT_SECONDS,
            metavar="SECONDS",
            help="limit of the import check",
        )

    applying = command("apply", apply, apply.__doc__)
    applying.add_argument("--to", required=True, metavar="DIR", help="writable directory for the patched copy")
    applying.add_argument(
        "--no-import-check", action="store_true", help="do not prove the result (no interpreter start)"
    )
    applying.add_argument("--termination-log", metavar="FILE", help="also write the JSON result there")
    proving(applying)
    checking = command("check", check, check.__doc__)
    checking.add_argument("--tree", metavar="DIR", help="patched directory (default: the one a server would load)")
    proving(checking)
    showing = command("show", show, show.__doc__)
    showing.add_argument("--to", metavar="DIR", help="a patched directory to leave out of the search for the source")
    showing.add_argument("--json", action="store_true", help="print the result as one JSON line at the end")
    running = command("run", run, run.__doc__)
    running.add_argument("--tree", required=True, metavar="DIR", help="patched directory")
    running.add_argument("server", nargs=argparse.REMAINDER, metavar="-- CMD", help="the server's command line")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

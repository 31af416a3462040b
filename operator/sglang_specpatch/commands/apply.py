"""`apply`: patch a copy, or the installed package itself; a second run changes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from .. import bytecode, inplace, tree
from ..manifest import Manifest
from ..names import PACKAGE
from ..pristine import root_of
from ..result import Outcome, Reason, Refusal
from .shared import find_source, patched, prove_copy, prove_loaded, say


def apply(options: argparse.Namespace) -> Outcome:
    """Patch SGLang and prove it: a copy in a directory, or the installed files."""
    return _in_place(options) if options.in_place else _copy(options)


def _import_check(options: argparse.Namespace) -> str:
    return "skipped" if options.no_import_check else "passed"


def _copy(options: argparse.Namespace) -> Outcome:
    target = Path(options.to).absolute()
    source = find_source(without=target)
    if target == source.package or source.package in target.parents or target == source.package.parent:
        raise Refusal(
            Reason.SOURCE_NOT_WRITABLE,
            f"{target} is the place of the source tree itself. Give an empty directory of another place.",
            release=source.release,
            path=str(source.package),
        )
    with tree.locked(target):
        blueprint = tree.draw(source, import_check=_import_check(options))
        in_place = tree.is_in_place(blueprint, target)
        member_states = {f"{PACKAGE}/{path}": state for path, state in tree.states(blueprint, target).items()}
        proven = target if in_place else tree.build(blueprint, target)
        bytecode.drop_stale(blueprint.members_in(proven))
        try:
            if not options.no_import_check:
                prove_copy(proven, blueprint.manifest, options.check_timeout)
        except BaseException:
            tree.discard(target)
            raise
        if in_place:
            tree.seal(blueprint, target)
        else:
            tree.commit(blueprint, target)
    return _told(member_states, target, "already in place" if in_place else "put in place")


def _in_place(options: argparse.Namespace) -> Outcome:
    source = find_source()
    root = root_of(source)
    with inplace.locked(root):
        blueprint = tree.draw(source, import_check=_import_check(options))
        plan = inplace.plan(blueprint, root)
        done, member_states = plan.is_done(), plan.states()
        try:
            if not done:
                inplace.write(plan)
            bytecode.drop_stale(blueprint.members_in(root))
            if not options.no_import_check:
                prove_loaded(root, blueprint.manifest, options.check_timeout)
        except BaseException:
            if not done:
                inplace.undo(root)
            raise
        inplace.seal(plan)
    return _told(member_states, root, "already in place" if done else "put in place")


def _told(member_states: Mapping[str, str], root: Path, state: str) -> Outcome:
    for path, member_state in member_states.items():
        say(f"  {member_state}: {path}")
    manifest = Manifest.read(root)
    assert manifest is not None, f"{root / PACKAGE} was just sealed"
    return patched(manifest, root, state)

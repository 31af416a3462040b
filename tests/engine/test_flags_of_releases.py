"""What rendering believes of SGLang's flags and variables, held against the real sources: the oldest and the newest."""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_support import PROPERTY, engine, service

from sglang_operator.errors import SpecError
from sglang_operator.render import environment
from sglang_operator.render.args import own_flags
from sglang_operator.render.userargs import (
    BARE_SWITCHES,
    SPECULATION_DP_SIZES,
    SPECULATION_DP_SWITCH,
    UNSUPPORTED,
    OwnFlag,
)
from sglang_specpatch.names import FIELDS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

RELEASES = ("0.5.6", "0.5.14", "0.5.23")
LATER = {"0.5.6": {"--admin-api-key", "SGLANG_CACHE_DIR"}}
"""What a release does not have yet: the flag is given only with a key for it, without the variable HOME counts."""

PROGRAM = pathlib.Path(__file__).parents[1] / "support/flags_program.py"
IMPORT_SECONDS = 240
PATCH_FLAGS = {field.flag: field.name for field in FIELDS}
"""Flags that the engine patch adds, with what they set."""

USERS_OWN = {"--speculative-verify-tile"}
"""Of these, what the operator leaves to `engine.args`."""


@dataclass(frozen=True)
class Flag:
    """One flag of a release."""

    spellings: tuple[str, ...]
    destination: str
    nargs: Any


def cache() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("SGLANG_DEV_CACHE") or pathlib.Path(base) / "sglang-operator")


def tree(release: str) -> pathlib.Path:
    folder = cache() / "trees" / release
    assert folder.is_dir(), f"{folder} is missing: `make test-engine` fetches it"
    return folder


@functools.cache
def flags(release: str) -> tuple[Flag, ...]:
    """The flags that this release's own parser registers, read in a process of its own."""
    path = os.pathsep.join((str(tree(release)), str(cache() / "engine-env")))
    done = subprocess.run(
        [sys.executable, PROGRAM],
        env={**os.environ, "PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        timeout=IMPORT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return tuple(Flag(tuple(item["spellings"]), item["destination"], item["nargs"]) for item in found)


def parser(release: str) -> argparse.ArgumentParser:
    """A parser that reads the same flags in the same way, plus the engine patch's own; values stay texts."""
    made = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name, destination in PATCH_FLAGS.items():
        made.add_argument(name, dest=destination)
    for flag in flags(release):
        if flag.nargs == 0:
            made.add_argument(*flag.spellings, dest=flag.destination, action="store_true")
        else:
            made.add_argument(*flag.spellings, dest=flag.destination, nargs=flag.nargs)
    return made


def listed() -> list[OwnFlag]:
    return [*own_flags(service()), *UNSUPPORTED, SPECULATION_DP_SWITCH, *SPECULATION_DP_SIZES]


@pytest.mark.parametrize("release", RELEASES)
def test_the_operators_flags_exist_with_all_their_spellings(release: str) -> None:
    by_spelling = {spelling: flag for flag in flags(release) for spelling in flag.spellings}
    for own in own_flags(service()):
        if own.name not in PATCH_FLAGS.keys() | LATER.get(release, set()):
            assert set(by_spelling[own.name].spellings) == set(own.spellings)
    known = PATCH_FLAGS.keys() & by_spelling.keys()
    assert not known, "the release has the flag by itself: the patch must be reconsidered"


@pytest.mark.parametrize("release", RELEASES)
def test_no_other_flag_is_the_beginning_of_a_listed_one(release: str) -> None:
    ours = {spelling for flag in listed() for spelling in flag.spellings}
    others = {spelling for flag in flags(release) for spelling in flag.spellings} - ours
    assert len(others) > 200
    assert not [(other, own) for other in others for own in ours if own.startswith(other)]


def test_every_listed_flag_exists_in_some_release() -> None:
    known = {spelling for release in RELEASES for flag in flags(release) for spelling in flag.spellings}
    assert {spelling for flag in listed() for spelling in flag.spellings} - known == set(PATCH_FLAGS) - USERS_OWN


@pytest.mark.parametrize("release", RELEASES)
def test_bare_switches_take_no_value(release: str) -> None:
    nargs = {spelling: flag.nargs for flag in flags(release) for spelling in flag.spellings}
    assert {switch: nargs[switch] for switch in BARE_SWITCHES} == dict.fromkeys(BARE_SWITCHES, 0)


@pytest.mark.parametrize("release", RELEASES)
def test_what_passes_never_changes_what_a_field_says(release: str) -> None:
    """Whatever beginning of whatever flag a user writes: the server then reads the operator's values, or refuses."""
    read = parser(release)
    plain = vars(read.parse_args(engine(service())["args"]))
    ours = {flag.destination for flag in flags(release) if set(flag.spellings) & set(engine(service())["args"])}
    ours |= set(PATCH_FLAGS.values())
    own = sorted({spelling for flag in own_flags(service()) for spelling in flag.spellings})
    any_flag = sorted({spelling for flag in flags(release) for spelling in flag.spellings})
    word = st.builds(
        lambda spelling, cut, value: spelling[: max(3, len(spelling) - cut)] + value,
        st.one_of(st.sampled_from(own), st.sampled_from(any_flag)),
        st.integers(0, 12),
        st.sampled_from(["", "", "=4"]),
    )

    @settings(PROPERTY, max_examples=500)
    @given(st.lists(st.one_of(word, st.sampled_from(["4", "x"])), max_size=3))
    def check(items: list[str]) -> None:
        try:
            command = engine(service({"engine.args": items}))["args"]
            understood = vars(read.parse_args(command))
        except (SpecError, argparse.ArgumentError, SystemExit):
            return
        assert {name: understood[name] for name in ours} == {name: plain[name] for name in ours}

    check()


@pytest.mark.parametrize("release", RELEASES)
def test_variables_of_the_environment_mean_something_to_the_release(release: str) -> None:
    source = (tree(release) / "sglang/srt/environ.py").read_text(encoding="utf-8")
    ours = [name for name in environment.DEFAULTS if name.startswith("SGLANG_")]
    assert len(ours) >= 3
    assert {name for name in ours if f"{name} = Env" not in source} <= LATER.get(release, set())

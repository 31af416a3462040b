"""Tensor-parallel ranks decide alike at each step, with live updates and probes; one that would not is found."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lockstep
import pytest
from real_sglang import RELEASES, Workshop

pytestmark = [pytest.mark.engine, pytest.mark.timeout(360)]

PLAYED = ("0.5.16", RELEASES[-1])
"""A release that keeps live settings in its arguments, and one that keeps them in a context."""

PLAY_SECONDS = 240


@functools.cache
def _play(environment: tuple[tuple[str, str], ...], folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(lockstep.__file__))],
        env=dict(environment), cwd=folder, capture_output=True, text=True, check=False, timeout=PLAY_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.fixture(params=PLAYED)
def seen(request: pytest.FixtureRequest, workshop: Workshop) -> dict[str, Any]:
    patched = workshop.patched(request.param)
    assert patched.exit_code == 0, patched.log
    return _play(tuple(sorted(workshop.environment(patched.directory).items())), workshop.folder)


def test_two_ranks_decide_alike_at_each_step(seen: dict[str, Any]) -> None:
    played = seen["nothing"]
    assert played["differs"] is None
    assert played["turns"] == lockstep.TURNS
    assert played["exit codes"] == [0, 0]
    assert min(played["drafting"], played["not drafting"]) > 100, "the load must cross the thresholds"
    assert played["probes"] > 50
    assert played["updates"] > 50


@pytest.mark.parametrize("plant", ["rank", "clock"])
def test_a_decision_that_depends_on_the_rank_is_found(seen: dict[str, Any], plant: str) -> None:
    differs = seen[plant]["differs"]
    assert differs is not None
    assert differs["answers"][0] != differs["answers"][1]

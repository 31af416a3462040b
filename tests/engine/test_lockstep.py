"""Tensor-parallel ranks decide alike at each step, with live updates and probes; one that would not is found."""

from __future__ import annotations

from typing import Any

import lockstep
import pytest
from real_sglang import RELEASES, Workshop

pytestmark = [pytest.mark.engine, pytest.mark.timeout(360)]

PLAYED = ("0.5.16", RELEASES[-1])
"""A release that keeps live settings in its arguments, and one that keeps them in a context."""


@pytest.fixture(params=PLAYED)
def seen(request: pytest.FixtureRequest, workshop: Workshop) -> dict[str, Any]:
    return workshop.observe("lockstep.py", request.param)


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

"""Live updates of a real server with two tensor-parallel ranks: keys, bad values, and both ranks deciding alike.

Its answers are compared with those of a server without speculation on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cpu_engine import CpuEngine, acceptance, plan
from cpu_engine.client import PROBE_PERMILLE, THRESHOLD
from cpu_engine.compare import Reference
from real_sglang import RELEASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

RANKS = ("--tp-size", "2", "--enable-metrics-for-all-schedulers")
KEY, ADMIN_KEY = "a-key", "an-admin-key"


@dataclass(frozen=True)
class Stage:
    """A server with two ranks, and what is expected of it."""

    engine: CpuEngine
    expected: Reference


@pytest.fixture(scope="module", params=plan.newest_of_this_run(RELEASES))
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    variables = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
    server = CpuEngine(request.param, *RANKS, variables=variables, api_key=KEY, admin_key=ADMIN_KEY)
    with server.starting() as engine:
        with CpuEngine(request.param, speculating=False) as plain:
            expected = Reference.of(plain)
        yield Stage(engine.wait(), expected)


@pytest.fixture
def engine(stage: Stage) -> CpuEngine:
    return stage.engine


def in_force(engine: CpuEngine) -> set[tuple[object, object, float]]:
    """Return what the schedulers say, together with the gauge of each rank."""
    gauges = engine.samples("sglang:spec_disable_batch_threshold")
    assert {dict(labels)["tp_rank"] for labels in gauges} == {"0", "1"}
    return {
        (state[THRESHOLD], state[PROBE_PERMILLE], gauge)
        for state in engine.internal_states()
        for gauge in gauges.values()
    }


def test_an_update_is_read_back_on_every_rank(engine: CpuEngine) -> None:
    engine.update({THRESHOLD: 9, PROBE_PERMILLE: 20})
    assert in_force(engine) == {(9, 20, 9.0)}
    engine.update({PROBE_PERMILLE: 0})
    assert in_force(engine) == {(9, 0, 9.0)}


GOOD = {THRESHOLD: 3, PROBE_PERMILLE: 50}


@pytest.mark.parametrize("values", [
    {THRESHOLD: 3.0}, {THRESHOLD: "3"}, {THRESHOLD: True}, {THRESHOLD: None}, {THRESHOLD: [3]}, {THRESHOLD: {"a": 3}},
    {THRESHOLD: -1}, {THRESHOLD: 1_000_001}, {THRESHOLD: 10**30}, {PROBE_PERMILLE: 501}, {PROBE_PERMILLE: 5.0},
    {**GOOD, PROBE_PERMILLE: -1}, {**GOOD, THRESHOLD: "3"}, {PROBE_PERMILLE: 50, THRESHOLD: True},
    {**GOOD, "speculative_off_path": "zero-step"}, {**GOOD, "no_such_setting": 1}, {"no_such_setting": 1, **GOOD},
    {**GOOD, "pp_max_micro_batch_size": -1}, {"pp_max_micro_batch_size": -1, **GOOD},
], ids=str)  # fmt: skip
def test_a_bad_update_changes_nothing(engine: CpuEngine, values: dict[str, Any]) -> None:
    engine.update({THRESHOLD: 9, PROBE_PERMILLE: 20})
    answer = engine.try_update(values)
    assert in_force(engine) == {(9, 20, 9.0)}
    if engine.release != "0.5.14" or values.keys() <= GOOD.keys():  # It says True to keys that it doesn't know.
        assert answer.status_code == 400 or answer.json() == [False], f"{answer.status_code} {answer.text}"
    if answer.status_code == 400 and values.keys() <= GOOD.keys():
        assert (
            "must be" in answer.text or "Input should be a valid number" in answer.text
        )  # SGLang's own, for no number


@pytest.mark.parametrize(("key", "status"), [("", 401), ("wrong", 401), (KEY, 401), (ADMIN_KEY, 200)])
def test_only_the_admin_key_may_change_settings(engine: CpuEngine, key: str, status: int) -> None:
    engine.update({THRESHOLD: 9})
    assert engine.try_update({THRESHOLD: 7}, key).status_code == status
    assert engine.internal_states()[0][THRESHOLD] == (7 if status == 200 else 9)


def test_both_ranks_decide_alike(stage: Stage) -> None:
    """A rank that drafted while the other did not would hang in a collective operation, or spoil the outputs."""
    engine, expected = stage.engine, stage.expected
    engine.update({THRESHOLD: 0, PROBE_PERMILLE: 0})
    assert acceptance(expected.compare(engine)) > 1.5
    engine.set_threshold(1)
    assert acceptance(expected.compare(engine)) == 1.0
    with engine.toggled():
        expected.compare(engine)
    engine.update({THRESHOLD: 5, PROBE_PERMILLE: 100})
    expected.compare(engine)
    assert transitions(engine, "0") == transitions(engine, "1") > 3


def transitions(engine: CpuEngine, rank: str) -> float:
    return engine.metric("sglang:spec_mode_transitions_total", tp_rank=rank)

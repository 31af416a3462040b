"""What the hooks cost per decode step."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "hack/engine/bench_hooks.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_hooks", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_hooks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("batch_size", [1, 32, 128])
def test_a_step_costs_less_than_five_microseconds(bench: ModuleType, batch_size: int) -> None:
    """CPU time, best of several rounds: a busy machine makes rounds slower, never faster."""
    rank, patch = bench.scheduler(None)
    costs = []
    for _ in range(5):
        costs.append(bench.microseconds_per_step(batch_size, rank, patch))
        if costs[-1] < 5:
            break
    assert min(costs) < 5, costs


def test_deciding_whether_to_probe_costs_less_than_a_microsecond(bench: ModuleType) -> None:
    assert min(bench.microseconds_per_probe_decision(8) for _ in range(5)) < 1

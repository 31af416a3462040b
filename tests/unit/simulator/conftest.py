"""A simulated engine on loopback, with the patch's own runtime, for tests of its HTTP interface."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from simulated_engine import Running, Starter, engine_arguments, free_port, make_patched_tree, started

from engine_sim.arguments import EngineArguments


@pytest.fixture
def patched_tree(tmp_path: Path) -> Path:
    """A folder like a patched `sglang`, as far as the server reads it: the runtime, and the manifest beside it."""
    return make_patched_tree(tmp_path)


@pytest.fixture
def arguments(patched_tree: Path) -> EngineArguments:
    """Arguments of a speculating server with threshold 8, as the launcher would hand them over."""
    return engine_arguments(patched_tree)


@pytest.fixture
async def start(arguments: EngineArguments) -> AsyncIterator[Starter]:
    """Start engines: `await start(environment, field=value, …)` changes settings and arguments."""
    async with contextlib.AsyncExitStack() as stack:

        async def starter(environment: dict[str, str] | None = None, *, ready: bool = True, **changes: Any) -> Running:
            changed = dataclasses.replace(arguments, port=free_port(), **changes)
            return await started(stack, changed, environment, ready=ready)

        yield starter

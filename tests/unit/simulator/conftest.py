"""A simulated engine on loopback, with the patch's own runtime, for tests of its HTTP interface."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from simulated_engine import REQUEST_SECONDS, Running, Starter, answering, ended, free_port

import sglang_specpatch
from engine_sim.arguments import EngineArguments
from engine_sim.clock import RealClock
from engine_sim.patch import RUNTIME_DIRECTORY
from engine_sim.serve import engine_of, serve
from engine_sim.settings import settings_from_environment


@pytest.fixture
def patched_tree(tmp_path: Path) -> Path:
    """A folder like a patched `sglang`, as far as the server reads it: the runtime, and the manifest beside it."""
    tree = tmp_path / "sglang"
    runtime = Path(sglang_specpatch.__path__[0]) / "runtime"
    shutil.copytree(runtime, tree / RUNTIME_DIRECTORY, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "specpatch-manifest.json").write_text(json.dumps({"generation": 1, "release": "0.5.23"}))
    return tree


@pytest.fixture
def arguments(patched_tree: Path) -> EngineArguments:
    """Arguments of a speculating server with threshold 8, as the launcher would hand them over."""
    fields = {"model_path": "org/model", "speculative_algorithm": "EAGLE3", "tp_size": 8}
    return EngineArguments(
        host="127.0.0.1",
        port=free_port(),
        model_path="org/model",
        served_model_name="served",
        tp_size=8,
        dp_size=1,
        api_key=None,
        admin_api_key=None,
        enable_metrics=True,
        max_running_requests=64,
        max_total_tokens=None,
        chunked_prefill_size=None,
        context_length=None,
        stream_interval=1,
        speculative_algorithm="EAGLE3",
        num_steps=3,
        threshold=8,
        inactive_reason=None,
        release="0.5.23",
        tree=str(patched_tree),
        resolved=False,
        numeric_updates=True,
        answers_true_always=False,
        server_args=json.dumps(fields),
    )


@pytest.fixture
async def start(arguments: EngineArguments) -> AsyncIterator[Starter]:
    """Start engines: `await start(environment, field=value, …)` changes settings and arguments."""
    async with contextlib.AsyncExitStack() as stack:

        async def starter(environment: dict[str, str] | None = None, *, ready: bool = True, **changes: Any) -> Running:
            changed = dataclasses.replace(arguments, port=free_port(), **changes)
            settings = settings_from_environment(
                {"SGLANG_SIM_CURVE": "triton-decode", "SGLANG_SIM_LOAD_SECONDS": "0", **(environment or {})}
            )
            engine = engine_of(changed, settings, RealClock())
            stop = asyncio.Event()
            server = asyncio.create_task(serve(engine, stop))
            stack.push_async_callback(ended, server, stop)
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
            )
            running = Running(engine, f"http://{changed.host}:{changed.port}", session, stop)
            await answering(running, ready=ready)
            return running

        yield starter

"""The server as a process: how it starts, crashes and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from simulated_engine import eventually, free_port

import engine_sim
import sglang_operator
from engine_sim.arguments import EngineArguments
from engine_sim.clock import Clock, RealClock
from engine_sim.serve import engine_of, serve
from engine_sim.settings import settings_from_environment

IMAGE_PATH = os.pathsep.join(str(Path(package.__path__[0]).parent) for package in (engine_sim, sglang_operator))


async def test_a_scheduler_that_raises_takes_the_server_down(
    arguments: EngineArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_from_environment({"SGLANG_SIM_LOAD_SECONDS": "0"})
    engine = engine_of(replace(arguments, port=free_port()), settings, RealClock())

    async def raises(_: Clock) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(engine.groups[0], "run", raises)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(engine, stop))
    ended, _ = await asyncio.wait([serving], timeout=10)
    stop.set()
    with pytest.raises(ZeroDivisionError, match="planted"):
        await serving
    assert ended, "it waited to be told to stop"


@asynccontextmanager
async def served(arguments: EngineArguments, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process as the launcher leaves it: arguments in an open file, settings in the environment."""
    descriptor = os.memfd_create("arguments", 0)
    try:
        os.write(descriptor, arguments.to_json().encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine_sim.serve",
            "--arguments-fd",
            str(descriptor),
            env={**os.environ, "PYTHONPATH": IMAGE_PATH, "SGLANG_SIM_LOAD_SECONDS": "0", **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(descriptor,),
        )
    finally:
        os.close(descriptor)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def listening(session: aiohttp.ClientSession) -> None:
    async def holds() -> bool:
        try:
            async with session.get("/ready") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False

    await eventually(holds, seconds=20)


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Exit code and output."""
    async with asyncio.timeout(10):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_a_signal_stops_it_soon_with_zero(arguments: EngineArguments) -> None:
    async with served(arguments) as process, aiohttp.ClientSession(f"http://127.0.0.1:{arguments.port}") as session:
        await listening(session)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, out = await ended(process)
        assert time.monotonic() - asked < 2
    assert code == 0
    assert "speculative_disable_batch_threshold = 8; curve mid" in out
    assert out.count("\n") == 5, "one line per event: what it is, threshold, listening, ready, stopping"


async def test_a_crash_is_a_crash(arguments: EngineArguments) -> None:
    async with served(arguments) as process, aiohttp.ClientSession(f"http://127.0.0.1:{arguments.port}") as session:
        await listening(session)
        with suppress(aiohttp.ClientConnectionError):
            await session.post("/simulator/faults", json={"crash": True})
        code, _ = await ended(process)
    assert code == 1


async def test_a_wrong_setting_is_told_before_serving(arguments: EngineArguments) -> None:
    async with served(arguments, SGLANG_SIM_CURVE="nope") as process:
        code, out = await ended(process)
    assert code == 2
    assert out.startswith("SGLANG_SIM_CURVE=nope: there is no curve 'nope'")

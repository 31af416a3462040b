"""A simulated engine served on loopback inside a test, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

import sglang_specpatch
from engine_sim.arguments import EngineArguments
from engine_sim.clock import RealClock
from engine_sim.engine import Engine
from engine_sim.patch import RUNTIME_DIRECTORY
from engine_sim.serve import engine_of, serve
from engine_sim.settings import settings_from_environment

START_SECONDS = 10
REQUEST_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Running:
    """A served engine and a client of it."""

    engine: Engine
    url: str
    session: aiohttp.ClientSession
    stop: asyncio.Event

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        return await self.request("POST", path, json=body, **options)

    async def request(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Status, and the body as JSON where it is that, else as text."""
        async with self.session.request(method, self.url + path, **options) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json else text

    async def events(self, path: str, body: Any) -> list[Any]:
        """The data of all events of a stream, the closing one as the text it is."""
        found: list[Any] = []
        async with self.session.post(self.url + path, json=body) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            async for line in response.content:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    found.append(json.loads(data) if data.startswith(b"{") else data.decode())
        return found

    async def sample(self, name: str, **labels: str) -> float | None:
        """The sum of a series' samples with these labels, or None if there is none."""
        _, text = await self.get("/metrics")
        values = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(f'{k}="{v}"' in line for k, v in labels.items())
        ]
        return sum(values) if values else None

    async def running(self, requests: int) -> None:
        """Wait until that many requests run."""

        async def holds() -> bool:
            return await self.sample("sglang:num_running_reqs") == requests

        await eventually(holds)


Starter = Callable[..., Awaitable[Running]]


def make_patched_tree(folder: Path) -> Path:
    """Make a folder like a patched `sglang`, as far as the server reads it: the runtime, and the manifest beside it."""
    tree = folder / "sglang"
    runtime = Path(sglang_specpatch.__path__[0]) / "runtime"
    shutil.copytree(runtime, tree / RUNTIME_DIRECTORY, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "specpatch-manifest.json").write_text(json.dumps({"generation": 2, "release": "0.5.23"}))
    return tree


def engine_arguments(tree: Path) -> EngineArguments:
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
        probe_permille=0,
        off_path="auto",
        inactive_reason=None,
        release="0.5.23",
        tree=str(tree),
        resolved=False,
        numeric_updates=True,
        answers_true_always=False,
        server_args=json.dumps(fields),
    )


async def started(
    stack: contextlib.AsyncExitStack,
    arguments: EngineArguments,
    environment: dict[str, str] | None = None,
    *,
    ready: bool = True,
) -> Running:
    """Start an engine that ends with `stack`."""
    settings = settings_from_environment(
        {"SGLANG_SIM_CURVE": "triton-decode", "SGLANG_SIM_LOAD_SECONDS": "0", **(environment or {})}
    )
    engine = engine_of(arguments, settings, RealClock())
    stop = asyncio.Event()
    server = asyncio.create_task(serve(engine, stop))
    stack.push_async_callback(ended, server, stop)
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    session = await stack.enter_async_context(
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
    )
    running = Running(engine, f"http://{arguments.host}:{arguments.port}", session, stop)
    await answering(running, ready=ready)
    return running


async def eventually(holds: Callable[[], Awaitable[bool]], *, seconds: float = 10) -> None:
    """Wait until it holds; TimeoutError after the deadline."""
    async with asyncio.timeout(seconds):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.01)


async def answering(running: Running, *, ready: bool) -> None:
    """Wait until the server listens, and if wanted until it is loaded."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                status, _ = await running.get("/ready")
                if status == 200 or not ready:
                    return
            await asyncio.sleep(0.02)


async def ended(server: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    async with asyncio.timeout(START_SECONDS):
        await server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

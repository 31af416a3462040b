"""A simulated engine served on loopback inside a test, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from engine_sim.engine import Engine

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

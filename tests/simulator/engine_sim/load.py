"""A load client: `python3 -m engine_sim.load --url http://… --phases 1:30,64:60,1:30`.

Closed loop keeps a number of requests under way; open loop sends at a rate (Poisson arrivals) whatever the server does.
Prints one JSON line about every second and a summary at the end. Exit code 0 if any request succeeded, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any

import aiohttp

from engine_sim.load_plan import Length, Phase, length_from_text, phases_from_text


@dataclasses.dataclass(frozen=True)
class Options:
    """How requests look and where the run ends."""

    url: str
    model: str
    chat: bool
    stream: bool
    api_key: str | None
    prompt: Length
    output: Length
    timeout_seconds: float
    max_requests: int
    max_in_flight: int
    report_seconds: float
    seed: int


@dataclasses.dataclass
class Totals:
    """What has happened so far."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    in_flight: int = 0
    output_tokens: int = 0
    last_error: str | None = None
    latencies_seconds: list[float] = dataclasses.field(default_factory=list)


class LoadRun:
    """One run over all phases."""

    def __init__(self, options: Options, session: aiohttp.ClientSession) -> None:
        self.totals = Totals()
        self._options = options
        self._session = session
        self._random = random.Random(options.seed)
        self._target = 0
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._arrivals: set[asyncio.Task[bool]] = set()
        self._started = time.monotonic()
        self._reported = (self._started, 0)

    async def run(self, phases: tuple[Phase, ...]) -> None:
        """Go through the phases, then drop what is still under way."""
        reporter = asyncio.create_task(self._report_often())
        try:
            for number, phase in enumerate(phases):
                self._say(
                    {"phase": number, "concurrency": phase.concurrency, "rate": phase.rate, "seconds": phase.seconds}
                )
                await self._run_phase(phase)
        finally:
            await _cancelled([reporter, *self._workers.values(), *self._arrivals])
            self._summarize()

    async def _run_phase(self, phase: Phase) -> None:
        end = time.monotonic() + phase.seconds
        self._target = phase.concurrency or 0
        for index in range(self._target):
            if index not in self._workers or self._workers[index].done():
                self._workers[index] = asyncio.create_task(self._work(index))
        while (left := end - time.monotonic()) > 0 and not self._used_up():
            if phase.rate is None:
                await asyncio.sleep(min(left, 0.2))
                continue
            await asyncio.sleep(min(left, self._random.expovariate(phase.rate)))
            if self.totals.in_flight < self._options.max_in_flight and time.monotonic() < end:
                task = asyncio.create_task(self._request())
                self._arrivals.add(task)
                task.add_done_callback(self._arrivals.discard)

    async def _work(self, index: int) -> None:
        while index < self._target and not self._used_up():
            if not await self._request():
                await asyncio.sleep(0.2)

    def _used_up(self) -> bool:
        return self.totals.started >= self._options.max_requests

    async def _request(self) -> bool:
        totals = self.totals
        totals.started += 1
        totals.in_flight += 1
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                await self._exchange()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            totals.failed += 1
            totals.last_error = f"{type(error).__name__}: {error}"[:300]
            return False
        else:
            totals.succeeded += 1
            totals.latencies_seconds.append(time.monotonic() - start)
            return True
        finally:
            totals.in_flight -= 1

    async def _exchange(self) -> None:
        path, body = self._body()
        headers = {"Authorization": f"Bearer {self._options.api_key}"} if self._options.api_key else {}
        async with self._session.post(self._options.url + path, json=body, headers=headers) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}: {(await response.text())[:200]}")
            if not self._options.stream:
                self.totals.output_tokens += _completion_tokens(await response.json())
                return
            seen = 0
            async for line in response.content:
                if line.startswith(b"data: {"):
                    tokens = _completion_tokens(json.loads(line[6:])) or seen + 1
                    self.totals.output_tokens += tokens - seen
                    seen = tokens

    def _body(self) -> tuple[str, dict[str, Any]]:
        options = self._options
        prompt, output = options.prompt.draw(self._random), options.output.draw(self._random)
        if not options.chat:
            sampling = {"max_new_tokens": output, "ignore_eos": True}
            return "/generate", {"input_ids": [1] * prompt, "sampling_params": sampling, "stream": options.stream}
        body: dict[str, Any] = {
            "model": options.model,
            "messages": [{"role": "user", "content": "load" * prompt}],
            "max_tokens": output,
            "stream": options.stream,
        }
        return "/v1/chat/completions", body

    async def _report_often(self) -> None:
        while True:
            await asyncio.sleep(self._options.report_seconds)
            self._report()

    def _report(self) -> None:
        now, totals = time.monotonic(), self.totals
        before, tokens_before = self._reported
        self._reported = (now, totals.output_tokens)
        self._say(
            {
                "in_flight": totals.in_flight,
                "succeeded": totals.succeeded,
                "failed": totals.failed,
                "output_tokens": totals.output_tokens,
                "tokens_per_second": round((totals.output_tokens - tokens_before) / max(now - before, 1e-6), 1),
                **({"last_error": totals.last_error} if totals.last_error else {}),
            }
        )

    def _summarize(self) -> None:
        totals = self.totals
        latencies = sorted(totals.latencies_seconds)
        seconds = time.monotonic() - self._started
        self._say(
            {
                "summary": True,
                "started": totals.started,
                "succeeded": totals.succeeded,
                "failed": totals.failed,
                "output_tokens": totals.output_tokens,
                "tokens_per_second": round(totals.output_tokens / max(seconds, 1e-6), 1),
                "latency_seconds_median": round(statistics.median(latencies), 3) if latencies else None,
                "latency_seconds_p99": round(latencies[int(0.99 * (len(latencies) - 1))], 3) if latencies else None,
                "last_error": totals.last_error,
            }
        )

    def _say(self, document: dict[str, Any]) -> None:
        print(json.dumps({"at_seconds": round(time.monotonic() - self._started, 2), **document}), flush=True)


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _completion_tokens(document: dict[str, Any]) -> int:
    usage = document.get("usage") or document.get("meta_info") or {}
    return int(usage.get("completion_tokens", 0))


async def run(options: Options, phases: tuple[Phase, ...]) -> Totals:
    """Make a run and return its totals."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        load_run = LoadRun(options, session)
        await load_run.run(phases)
    return load_run.totals


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and make one run."""
    given = _parser().parse_args(arguments)
    try:
        phases = phases_from_text(given.phases or f"{given.concurrency}:{given.duration_seconds:g}")
        options = Options(
            url=given.url.rstrip("/"),
            model=given.model,
            chat=given.chat,
            stream=given.stream,
            api_key=given.api_key,
            prompt=length_from_text(given.prompt_tokens),
            output=length_from_text(given.output_tokens),
            timeout_seconds=given.timeout_seconds,
            max_requests=given.max_requests,
            max_in_flight=given.max_in_flight,
            report_seconds=given.report_seconds,
            seed=given.seed,
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if asyncio.run(run(options, phases)).succeeded else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m engine_sim.load", description=__doc__)
    add = parser.add_argument
    add("--url", required=True, help="base address, such as http://10.0.0.5:30000")
    add("--phases", help="such as 1:30,64:60,r2.5:20 (concurrency:seconds, or r and requests a second)")
    add("--concurrency", type=int, default=1, help="requests under way, without --phases")
    add("--duration-seconds", type=float, default=60.0, help="length, without --phases")
    add("--prompt-tokens", default="128", help="128, or 100-200 for a uniform choice")
    add("--output-tokens", default="160", help="160, or 100-200 for a uniform choice")
    add("--chat", action="store_true", help="use /v1/chat/completions instead of /generate")
    add("--model", default="default", help="model name for --chat")
    add("--stream", action="store_true", help="stream answers")
    add("--api-key", help="sent as a bearer token")
    add("--timeout-seconds", type=float, default=300.0, help="limit of one request")
    add("--max-requests", type=int, default=1_000_000, help="end after that many requests")
    add("--max-in-flight", type=int, default=1024, help="open loop: skip arrivals beyond that many under way")
    add("--report-seconds", type=float, default=1.0, help="time between lines")
    add("--seed", type=int, default=0, help="of lengths and arrivals")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

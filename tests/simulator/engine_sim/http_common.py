"""What the HTTP modules share: the engine of an application, bodies, errors, event streams."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator
from typing import Any

from aiohttp import web

from engine_sim.engine import Engine, Ticket

ENGINE: web.AppKey[Engine] = web.AppKey("engine", Engine)
DEFAULT_OUTPUT_TOKENS = 128
MAX_OUTPUT_TOKENS = 1_000_000


class BadRequest(ValueError):
    """A request that is answered with 400; the message is for the client."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What a generation request asks for."""

    prompt_tokens: int
    output_tokens: int
    streaming: bool


def log(event: str) -> None:
    """One line per event on stdout."""
    print(f"[simulated engine] {event}", flush=True)


async def json_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object. Raises BadRequest."""
    try:
        body = await request.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def output_tokens(value: object) -> int:
    """Wanted output tokens; SGLang's default where none are given. Raises BadRequest."""
    if value is None:
        return DEFAULT_OUTPUT_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_OUTPUT_TOKENS:
        raise BadRequest(f"max_new_tokens must be a whole number from 1 to {MAX_OUTPUT_TOKENS}, got {value!r}.")
    return value


async def totals(engine: Engine, work: Work) -> AsyncGenerator[tuple[Ticket, int]]:
    """Run a request; yield its ticket and the number of output tokens so far.

    Close the generator (`aclosing`): then a request is dropped from the engine when its consumer stops early.
    Raises BadRequest, and web.HTTPException 503 while the engine loads or stops.
    """
    if not engine.loaded or engine.stopping:
        raise web.HTTPServiceUnavailable(text="the engine is not serving")
    try:
        group, ticket = engine.submit(work.prompt_tokens, work.output_tokens, streaming=work.streaming)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    try:
        async for done in ticket.progress():
            yield ticket, done
    finally:
        group.abort(ticket)


async def event_stream(request: web.Request) -> web.StreamResponse:
    """Start a stream of server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


async def send_event(response: web.StreamResponse, document: Any) -> None:
    """Send one event."""
    await response.write(b"data: " + json.dumps(document).encode() + b"\n\n")


async def end_events(response: web.StreamResponse) -> None:
    """Send the closing event."""
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()


async def hang() -> None:
    """Never return, until the client gives up or the server stops."""
    await asyncio.Event().wait()

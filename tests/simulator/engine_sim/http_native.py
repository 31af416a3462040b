"""SGLang's native interface: /generate, health and model information."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

from aiohttp import web

from engine_sim.engine import Engine, Ticket
from engine_sim.http_common import (
    ENGINE,
    BadRequest,
    Work,
    end_events,
    event_stream,
    hang,
    json_object,
    output_tokens,
    send_event,
    totals,
)
from engine_sim.tokens import count_tokens, token_ids, token_text

# SGLang's health check sends a one-token request and looks a second later whether anything came back.
HEALTH_SECONDS = 1.0


def add_routes(app: web.Application) -> None:
    """Add this module's paths."""
    for path in ("/health", "/health_generate"):
        app.router.add_get(path, health)
    app.router.add_get("/ready", ready)
    for method in ("POST", "PUT"):
        app.router.add_route(method, "/generate", generate)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, model_info)


async def health(request: web.Request) -> web.Response:
    """503 while loading or stopping, else 200: as with the real server, after a second where a token is generated."""
    engine = request.app[ENGINE]
    if engine.faults.hang_health:
        await hang()
    if not engine.loaded or engine.stopping:
        return web.Response(status=503)
    if engine.settings.health_generates or request.path != "/health":
        await asyncio.sleep(HEALTH_SECONDS)
    return web.Response(status=200)


async def ready(request: web.Request) -> web.Response:
    """200 if new requests are taken."""
    engine = request.app[ENGINE]
    return web.Response(status=200 if engine.loaded and not engine.stopping else 503)


async def model_info(request: web.Request) -> web.Response:
    """What is served."""
    arguments = request.app[ENGINE].arguments
    fields = json.loads(arguments.server_args)
    return web.json_response(
        {
            "model_path": arguments.model_path,
            "served_model_name": arguments.served_model_name,
            "tokenizer_path": fields.get("tokenizer_path") or arguments.model_path,
            "is_generation": True,
            "preferred_sampling_params": fields.get("preferred_sampling_params"),
            "weight_version": fields.get("weight_version"),
            "load_format": fields.get("load_format"),
        }
    )


async def generate(request: web.Request) -> web.StreamResponse:
    """Answer a native generation request, at once or as a stream of ever longer texts."""
    engine = request.app[ENGINE]
    work = _work(await json_object(request))
    if not work.streaming:
        async with aclosing(totals(engine, work)) as progress:
            async for ticket, done in progress:
                last = _answer(engine, ticket, 0, done)
        return web.json_response(last)
    return await _stream(request, engine, work)


async def _stream(request: web.Request, engine: Engine, work: Work) -> web.StreamResponse:
    incremental = bool(json.loads(engine.arguments.server_args).get("incremental_streaming_output"))
    response: web.StreamResponse | None = None
    sent = 0
    async with aclosing(totals(engine, work)) as progress:
        async for ticket, done in progress:
            response = response or await event_stream(request)
            await send_event(response, _answer(engine, ticket, sent if incremental else 0, done))
            sent = done
    assert response is not None
    await end_events(response)
    return response


def _answer(engine: Engine, ticket: Ticket, start: int, done: int) -> dict[str, Any]:
    job = ticket.job
    finished = done >= job.output_tokens
    meta: dict[str, Any] = {
        "id": f"{job.number:032x}",
        "finish_reason": {"type": "length", "length": job.output_tokens} if finished else None,
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": done,
        "cached_tokens": 0,
    }
    if job.draft_steps:
        meta["spec_verify_ct"] = job.draft_steps
    if finished:
        meta["e2e_latency"] = engine.clock.now() - job.arrived_seconds
    text, ids = token_text(job.number, start, done), token_ids(job.number, start, done)
    return {"text": text, "output_ids": ids, "meta_info": meta}


def _work(body: dict[str, Any]) -> Work:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise BadRequest("exactly one of text and input_ids must be given")
    if text is not None:
        if not isinstance(text, str):
            raise BadRequest("text must be a string; lists of texts are not simulated")
        prompt_tokens = count_tokens(text)
    else:
        if not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
            raise BadRequest("input_ids must be a list of whole numbers, not empty; lists of lists are not simulated")
        prompt_tokens = len(ids)
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise BadRequest("sampling_params must be a JSON object")
    return Work(prompt_tokens, output_tokens(sampling.get("max_new_tokens")), bool(body.get("stream")))

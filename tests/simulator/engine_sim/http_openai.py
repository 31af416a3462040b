"""The OpenAI-compatible interface: models, completions and chat completions, at once or streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from engine_sim.engine import Ticket
from engine_sim.http_common import (
    ENGINE,
    BadRequest,
    Work,
    end_events,
    event_stream,
    json_object,
    output_tokens,
    send_event,
    totals,
)
from engine_sim.tokens import count_tokens, token_text

_Choice = Callable[[str, str | None], dict[str, Any]]


def add_routes(app: web.Application) -> None:
    """Add this module's paths."""
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat_completions)


async def models(request: web.Request) -> web.Response:
    """The one served model."""
    arguments = request.app[ENGINE].arguments
    card = {
        "id": arguments.served_model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": arguments.served_model_name,
        "max_model_len": arguments.context_length,
    }
    return web.json_response({"object": "list", "data": [card]})


async def completions(request: web.Request) -> web.StreamResponse:
    """Complete a prompt."""
    body = await json_object(request)
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise BadRequest("prompt must be a string; lists of prompts are not simulated")

    def choice(text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}

    work = Work(count_tokens(prompt), output_tokens(body.get("max_tokens")), bool(body.get("stream")))
    return await _respond(request, body, work, ("text_completion", "text_completion"), choice, choice)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    body = await json_object(request)
    messages = body.get("messages")
    if not (isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)):
        raise BadRequest("messages must be a list of objects with role and content that is not empty")
    prompt_tokens = sum(_content_tokens(message.get("content")) for message in messages)

    def whole(text: str, finish_reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "tool_calls": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}

    def part(text: str, finish_reason: str | None) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    work = Work(prompt_tokens, output_tokens(limit), bool(body.get("stream")))
    return await _respond(request, body, work, ("chat.completion", "chat.completion.chunk"), whole, part)


async def _respond(
    request: web.Request, body: dict[str, Any], work: Work, kinds: tuple[str, str], whole: _Choice, part: _Choice
) -> web.StreamResponse:
    if work.streaming:
        return await _stream(request, body, work, kinds[1], part)
    async with aclosing(totals(request.app[ENGINE], work)) as progress:
        async for ticket, done in progress:
            choices = [whole(token_text(ticket.job.number, 0, done), "length")]
    head = _head(request, ticket, kinds[0])
    return web.json_response({**head, "choices": choices, "usage": _usage(ticket, done)})


async def _stream(
    request: web.Request, body: dict[str, Any], work: Work, kind: str, part: _Choice
) -> web.StreamResponse:
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    response: web.StreamResponse | None = None
    sent = 0
    async with aclosing(totals(request.app[ENGINE], work)) as progress:
        async for ticket, done in progress:
            response = response or await event_stream(request)
            finish_reason = "length" if done >= work.output_tokens else None
            choice = part(token_text(ticket.job.number, sent, done), finish_reason)
            await send_event(response, {**_head(request, ticket, kind), "choices": [choice]})
            sent = done
    assert response is not None
    if with_usage:
        await send_event(response, {**_head(request, ticket, kind), "choices": [], "usage": _usage(ticket, sent)})
    await end_events(response)
    return response


def _head(request: web.Request, ticket: Ticket, kind: str) -> dict[str, Any]:
    return {
        "id": f"{ticket.job.number:032x}",
        "object": kind,
        "created": int(time.time()),
        "model": request.app[ENGINE].arguments.served_model_name,
    }


def _usage(ticket: Ticket, done: int) -> dict[str, Any]:
    prompt_tokens = ticket.job.prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": done,
        "total_tokens": prompt_tokens + done,
        "prompt_tokens_details": None,
    }


def _content_tokens(content: object) -> int:
    return count_tokens(content if isinstance(content, str) else json.dumps(content))

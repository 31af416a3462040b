"""Control and observation: server information, live updates, cache, metrics, and the simulator's own switches."""

from __future__ import annotations

import json
import os
from typing import Any

import pydantic
from aiohttp import web

from engine_sim.engine import Engine, RankGroup
from engine_sim.faults import Faults
from engine_sim.http_common import ENGINE, BadRequest, hang, json_object, log
from engine_sim.patch import UpdateRefused
from engine_sim.settings import SettingsError, curve_named

# The HTTP layer of releases with numeric updates turns what looks like a number into one: "8" arrives as 8.
_NUMBERS = pydantic.TypeAdapter(dict[str, int | float])


def add_routes(app: web.Application) -> None:
    """Add this module's paths; /metrics only with --enable-metrics, as SGLang does."""
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, server_info)
    for method in ("POST", "PUT"):
        app.router.add_route(method, "/set_internal_state", set_internal_state)
    for method in ("GET", "POST"):
        app.router.add_route(method, "/flush_cache", flush_cache)
    if app[ENGINE].arguments.enable_metrics:
        for path in ("/metrics", "/metrics/"):
            app.router.add_get(path, metrics)
    app.router.add_get("/simulator/faults", show_faults)
    app.router.add_post("/simulator/faults", change_faults)
    app.router.add_delete("/simulator/faults", clear_faults)
    app.router.add_post("/simulator/drift", drift)


async def server_info(request: web.Request) -> web.Response:
    """Every argument, and the internal state of each rank group."""
    engine = request.app[ENGINE]
    fields = json.loads(engine.arguments.server_args)
    states = [{**fields, **group.internal_state()} for group in engine.groups]
    return web.json_response(
        {
            **fields,
            "status": "ready" if engine.loaded else "loading",
            "max_total_num_tokens": engine.groups[0].scheduler.limits.max_total_tokens,
            "internal_states": states,
            "version": engine.arguments.release,
            "simulated_engine": {
                "curve": engine.groups[0].scheduler.curve.name,
                "accept_length": engine.groups[0].scheduler.acceptance.mean,
                "arguments_resolved": engine.arguments.resolved,
            },
        }
    )


async def set_internal_state(request: web.Request) -> web.Response:
    """Apply a live update; one truth value per rank group says whether it was taken, where the release says so."""
    engine = request.app[ENGINE]
    if engine.faults.hang_updates:
        await hang()
    body = await json_object(request)
    updates = _updates(engine, body)
    problem = _request_problem(engine, body["server_args"])
    if problem is not None:
        return web.json_response({"detail": problem}, status=400)
    taken = [_apply(engine, group, updates) for group in engine.groups]
    lies = engine.arguments.answers_true_always or engine.faults.lie_about_updates
    return web.json_response([True] * len(taken) if lies else taken)


async def flush_cache(request: web.Request) -> web.Response:
    """Nothing is cached; refused under load, as with the real server."""
    engine = request.app[ENGINE]
    if any(group.scheduler.running or group.scheduler.queue for group in engine.groups):
        return web.Response(status=400, text="Flush cache failed.\n")
    return web.Response(text="Cache flushed.\n")


async def metrics(request: web.Request) -> web.Response:
    """The Prometheus exposition."""
    engine = request.app[ENGINE]
    if engine.faults.hang_metrics:
        await hang()
    engine.refresh_metrics()
    accept = request.headers.get("Accept", "")
    body, content_type = engine.metrics.exposition(accept, with_patch=not engine.faults.drop_counters)
    return web.Response(body=body, headers={"Content-Type": content_type})


async def show_faults(request: web.Request) -> web.Response:
    """Names of the active faults."""
    return web.json_response({"active": list(request.app[ENGINE].faults.active())})


async def change_faults(request: web.Request) -> web.Response:
    """Switch faults on or off."""
    engine = request.app[ENGINE]
    try:
        engine.faults = engine.faults.changed(await json_object(request))
    except ValueError as error:
        raise BadRequest(str(error)) from error
    log(f"faults: {', '.join(engine.faults.active()) or 'none'}")
    if engine.faults.crash:
        os._exit(1)
    return await show_faults(request)


async def clear_faults(request: web.Request) -> web.Response:
    """Switch all faults off."""
    request.app[ENGINE].faults = Faults()
    log("faults: none")
    return await show_faults(request)


async def drift(request: web.Request) -> web.Response:
    """Change `curve` (a name) or `accept_length` while serving."""
    body = await json_object(request)
    unknown = set(body) - {"curve", "accept_length"}
    if unknown:
        raise BadRequest(f"{', '.join(sorted(unknown))}: only curve and accept_length can drift")
    curve, accept_length = body.get("curve"), body.get("accept_length")
    try:
        changed = curve_named(str(curve), {}) if curve is not None else None
        accept = float(accept_length) if accept_length is not None else None
        request.app[ENGINE].drift(changed, accept)
    except (SettingsError, ValueError, TypeError) as error:
        raise BadRequest(str(error)) from error
    log(f"drift: {json.dumps(body)}")
    return web.json_response(body)


def _updates(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    updates = body.get("server_args")
    if not isinstance(updates, dict):
        raise BadRequest("server_args must be a JSON object")
    if not engine.arguments.numeric_updates:
        return updates
    try:
        return dict(_NUMBERS.validate_python(updates))
    except pydantic.ValidationError as error:
        raise BadRequest(f"server_args: {error}") from error


def _request_problem(engine: Engine, updates: dict[str, Any]) -> str | None:
    """What the patch has against the values as they were sent, before anything turned them into numbers."""
    control = engine.groups[0].control
    return None if control is None else control.request_problem(updates)


def _apply(engine: Engine, group: RankGroup, updates: dict[str, Any]) -> bool:
    faults = engine.faults
    if faults.refuse_updates or faults.lie_about_updates:
        log(f"live update not applied (fault): {updates}")
        return False
    try:
        for key, value in updates.items():
            group.check_update(key, value)
    except UpdateRefused as refusal:
        log(f"rank group {group.index}: {refusal}")
        return False
    if not (faults.rank_differs and group is engine.groups[-1]):
        for key, value in updates.items():
            group.apply_update(key, value)
        log(f"rank group {group.index}: {updates}")
    return True

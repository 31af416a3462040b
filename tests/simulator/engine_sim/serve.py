"""The server process: reads the parsed arguments, serves, stops on SIGTERM within about a second."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from engine_sim import http_control, http_native, http_openai
from engine_sim.arguments import EngineArguments
from engine_sim.auth import key_middleware
from engine_sim.clock import Clock, RealClock
from engine_sim.engine import Engine
from engine_sim.http_common import ENGINE, BadRequest, log
from engine_sim.patch import RUNTIME_DIRECTORY, load_runtime
from engine_sim.settings import Settings, SettingsError, settings_from_environment

_MAX_BODY_BYTES = 64 * 1024 * 1024
_STOP_SECONDS = 0.5  # waited twice: for handlers to end, and after cancelling them


def application(engine: Engine) -> web.Application:
    """The whole HTTP interface of an engine."""
    arguments = engine.arguments
    app = web.Application(
        middlewares=[key_middleware(arguments.api_key, arguments.admin_api_key), _errors],
        client_max_size=_MAX_BODY_BYTES,
    )
    app[ENGINE] = engine
    for module in (http_native, http_openai, http_control):
        module.add_routes(app)
    return app


async def serve(engine: Engine, stop: asyncio.Event) -> None:
    """Serve until `stop` is set: bind, load, run; then refuse new work and end what is left.

    Raises what a scheduler raised: like the real one, it takes the server down with it.
    """
    runner = web.AppRunner(
        application(engine), handler_cancellation=True, access_log=None, shutdown_timeout=_STOP_SECONDS
    )
    await runner.setup()
    arguments = engine.arguments
    await web.TCPSite(runner, arguments.host, arguments.port, reuse_address=True).start()
    log(f"listening on {arguments.host}:{arguments.port}, loading for {engine.settings.load_seconds:g} s")
    schedulers = asyncio.create_task(_load_and_run(engine))
    schedulers.add_done_callback(lambda _: stop.set())
    try:
        await stop.wait()
    finally:
        engine.stopping = True
        log("stopping")
        await runner.cleanup()
        schedulers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await schedulers


def engine_of(arguments: EngineArguments, settings: Settings, clock: Clock) -> Engine:
    """An engine for parsed arguments, with the patch of the tree that parsed them, if it has one.

    Raises SettingsError if the settings don't fit the arguments.
    """
    runtime = load_runtime(Path(arguments.tree) / RUNTIME_DIRECTORY)
    return Engine(arguments, settings, runtime, clock)


async def _load_and_run(engine: Engine) -> None:
    await asyncio.sleep(engine.settings.load_seconds)
    engine.loaded = True
    log("ready")
    await asyncio.gather(*(group.run(engine.clock) for group in engine.groups))


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, status=400)


def _announce(engine: Engine) -> None:
    arguments = engine.arguments
    resolution = "resolved by SGLang" if arguments.resolved else "parsed by SGLang, not resolved"
    log(
        f"SGLang {arguments.release}, {arguments.served_model_name}, tp {arguments.tp_size}, dp {arguments.dp_size}, "
        f"speculation {arguments.speculative_algorithm}, arguments {resolution}"
    )
    threshold = "no such flag (unpatched)" if arguments.threshold is None else arguments.threshold
    inactive = f", inactive: {arguments.inactive_reason}" if arguments.inactive_reason else ""
    log(f"speculative_disable_batch_threshold = {threshold}{inactive}; curve {engine.settings.curve.name}")


async def _main(arguments: EngineArguments, settings: Settings) -> None:
    engine = engine_of(arguments, settings, RealClock())
    _announce(engine)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(engine, stop)


def main() -> int:
    """Read the arguments from the descriptor that `launch` left open, and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arguments-fd", type=int, required=True, help="open file with the parsed arguments as JSON")
    with os.fdopen(parser.parse_args().arguments_fd, "r") as file:
        arguments = EngineArguments.from_json(file.read())
    try:
        settings = settings_from_environment(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    asyncio.run(_main(arguments, settings))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The engine adapter against real HTTP servers on loopback that answer as SGLang does, and as it shouldn't."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from sglang_operator.adapters.engine import HttpEngine
from sglang_operator.adapters.ports import EngineAddress, EngineKeys, EngineState, LiveSettings
from sglang_operator.api.names import PROBE_FIELD, THRESHOLD_FIELD, THRESHOLD_MAX
from sglang_operator.errors import EngineError, EngineRefused, EngineUnauthorized, EngineUnreachable

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PATCH = {
    "generation": 2,
    "release": "0.5.23",
    "active": True,
    "inactive_reason": None,
    "off_path": "ZeroStep",
    "off_path_reason": "a mamba model",
}
OPEN = EngineKeys()


def wanted(batch_size: int, probe_permille: int | None = None) -> LiveSettings:
    return LiveSettings(batch_size=batch_size, probe_permille=probe_permille)


def state(threshold: object = 8, probe: object = None, **patch: object) -> dict[str, object]:
    """One rank's internal state; a real one has hundreds of other fields."""
    probing = {} if probe is None else {PROBE_FIELD: probe}
    fields = {"tp_size": 8, "attention_backend": "triton", THRESHOLD_FIELD: threshold, **probing}
    return {**fields, "specpatch": PATCH | patch}


class Server:
    """SGLang's interface with one value a rank, as the patched server has it."""

    def __init__(self, ranks: int = 1, *, probes: bool = False) -> None:
        self.values = [8] * ranks
        self.probes: list[int | None] = [0 if probes else None] * ranks
        self.replies: list[bool] = [True] * ranks
        self.updates: list[object] = []
        self.info_paths: list[str] = []

    async def info(self, request: web.Request) -> web.Response:
        self.info_paths.append(request.path)
        states = [state(value, probe) for value, probe in zip(self.values, self.probes, strict=True)]
        return web.json_response({"model_path": "m", "internal_states": states})

    async def update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.updates.append(body)
        for rank, reply in enumerate(self.replies):
            if reply:
                self.values[rank] = body["server_args"][THRESHOLD_FIELD]
                self.probes[rank] = body["server_args"].get(PROBE_FIELD, self.probes[rank])
        return web.json_response(self.replies)


Serve = Callable[..., Awaitable[EngineAddress]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(info: Handler, update: Handler | None = None, *, path: str = "/server_info") -> EngineAddress:
        app = web.Application()
        app.router.add_get(path, info)
        if update:
            app.router.add_post("/set_internal_state", update)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return EngineAddress(host="127.0.0.1", port=runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def engine() -> AsyncIterator[HttpEngine]:
    adapter = HttpEngine(timeout_seconds=1)
    yield adapter
    await adapter.close()


def answering(body: object, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        if isinstance(body, bytes):
            return web.Response(body=body, status=status)
        return web.json_response(body, status=status)

    return handler


async def test_set_and_read_back_on_every_rank(engine: HttpEngine, serve: Serve) -> None:
    server = Server(ranks=8)
    address = await serve(server.info, server.update)
    await engine.update(address, OPEN, wanted(32))
    assert server.updates == [{"server_args": {"speculative_disable_batch_threshold": 32}}]
    assert await engine.read(address, OPEN) == EngineState(
        thresholds=(32,) * 8,
        probe_permilles=None,
        active=True,
        inactive_reason=None,
        release="0.5.23",
        off_path="ZeroStep",
        off_path_reason="a mamba model",
        generation=2,
    )


async def test_threshold_and_probe_share_go_in_one_update_and_come_back_from_every_rank(
    engine: HttpEngine, serve: Serve
) -> None:
    server = Server(ranks=2, probes=True)
    address = await serve(server.info, server.update)
    assert (await engine.read(address, OPEN)).probe_permilles == (0, 0)
    await engine.update(address, OPEN, wanted(32, 20))
    assert server.updates == [
        {"server_args": {"speculative_disable_batch_threshold": 32, "speculative_probe_permille": 20}}
    ]
    read = await engine.read(address, OPEN)
    assert (read.thresholds, read.probe_permilles) == ((32, 32), (20, 20))


async def test_one_rank_without_probing_means_that_none_can_be_asked_for_it(engine: HttpEngine, serve: Serve) -> None:
    states = [state(8, 5), state(8)]
    read = await engine.read(await serve(answering({"internal_states": states})), OPEN)
    assert (read.thresholds, read.probe_permilles) == ((8, 8), None)


async def test_an_older_server_knows_the_old_path_only(engine: HttpEngine, serve: Serve) -> None:
    server = Server()
    assert (await engine.read(await serve(server.info, path="/get_server_info"), OPEN)).thresholds == (8,)
    assert server.info_paths == ["/get_server_info"]


async def test_one_rank_that_declines_is_named_and_read_back(engine: HttpEngine, serve: Serve) -> None:
    server = Server(ranks=3)
    server.replies = [True, False, True]
    address = await serve(server.info, server.update)
    with pytest.raises(EngineRefused, match="declined speculative_disable_batch_threshold 5 on rank 1 of 3"):
        await engine.update(address, OPEN, wanted(5))
    assert (await engine.read(address, OPEN)).thresholds == (5, 8, 5)


async def test_a_yes_that_means_no_shows_in_the_read_back(engine: HttpEngine, serve: Serve) -> None:
    server = Server()
    address = await serve(server.info, answering([True]))
    await engine.update(address, OPEN, wanted(5))
    assert (await engine.read(address, OPEN)).thresholds == (8,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (wanted(-1), f"{THRESHOLD_FIELD} must lie between 0 and {THRESHOLD_MAX}, not -1"),
        (wanted(THRESHOLD_MAX + 1), f"between 0 and {THRESHOLD_MAX}, not {THRESHOLD_MAX + 1}"),
        (wanted(1, -1), f"{PROBE_FIELD} must lie between 0 and 500, not -1"),
        (wanted(1, 501), f"{PROBE_FIELD} must lie between 0 and 500, not 501"),
    ],
)
async def test_a_value_out_of_range_is_never_sent(
    engine: HttpEngine, serve: Serve, settings: LiveSettings, sentence: str
) -> None:
    server = Server()
    with pytest.raises(EngineRefused, match=sentence):
        await engine.update(await serve(server.info, server.update), OPEN, settings)
    assert server.updates == []


async def test_a_patch_that_does_not_act_says_why(engine: HttpEngine, serve: Serve) -> None:
    states = [state(), state(active=False, inactive_reason="no draft worker", off_path=None)]
    read = await engine.read(await serve(answering({"internal_states": states})), OPEN)
    assert (read.thresholds, read.active, read.inactive_reason) == ((8, 8), False, "no draft worker")
    silent = {THRESHOLD_FIELD: 0}
    read = await engine.read(await serve(answering({"internal_states": [silent]})), OPEN)
    assert (read.thresholds, read.active) == ((0,), False)
    assert read.inactive_reason == "the server doesn't say whether its patch acts"


REFUSED: dict[str, tuple[object, str]] = {
    "not patched": ({"internal_states": [{"tp_size": 1}]}, "runs without the patch"),
    "null": ({"internal_states": [state(None)]}, "runs without the patch"),
    "second rank not patched": ({"internal_states": [state(), {}]}, "on rank 1: the server runs without"),
    "text": ({"internal_states": [state("8")]}, "'8' on rank 0; it must be an integer"),
    "float": ({"internal_states": [state(8.0)]}, "'8.0' on rank 0"),
    "bool": ({"internal_states": [state(True)]}, "'True' on rank 0"),
    "negative": ({"internal_states": [state(-1)]}, "'-1' on rank 0"),
    "too large": ({"internal_states": [state(10**9)]}, "between 0 and 1000000"),
    "a probe share as text": ({"internal_states": [state(8, "5")]}, "speculative_probe_permille '5' on rank 0"),
    "a probe share too large": ({"internal_states": [state(8, 501)]}, "between 0 and 500"),
    "active is text": ({"internal_states": [state(active="yes")]}, "'yes' on rank 0; it must be true or false"),
    "no states": ({"internal_states": []}, "no internal_states"),
    "states of text": ({"internal_states": ["x"]}, "runs without the patch"),
    "no object": ([1], "no internal_states"),
    "html": (b"<html>gateway</html>", "not JSON"),
    "empty": (b"", "not JSON"),
    "deep": (b"[" * 200_000, "not JSON"),
    "binary": (b"\xff\xfe\x00", "not JSON"),
}


@pytest.mark.parametrize(("body", "cause"), REFUSED.values(), ids=REFUSED.keys())
async def test_an_answer_that_no_patched_server_gives(
    engine: HttpEngine, serve: Serve, body: object, cause: str
) -> None:
    address = await serve(answering(body))
    with pytest.raises(EngineRefused) as caught:
        await engine.read(address, OPEN)
    assert cause in str(caught.value)
    assert f"127.0.0.1:{address.port}" in str(caught.value)


async def test_the_servers_own_words_about_a_refusal(engine: HttpEngine, serve: Serve) -> None:
    said = "Live update refused: speculative_probe_permille must be from 0 to 500, not 501."
    address = await serve(Server().info, answering({"detail": said}, 400))
    with pytest.raises(EngineRefused, match=said):
        await engine.update(address, OPEN, wanted(8, 500))


@pytest.mark.parametrize(
    ("status", "kind", "cause"),
    [
        (401, EngineUnauthorized, r"wants an API key for /s\w+ \(HTTP 401\)"),
        (403, EngineUnauthorized, r"wants an API key for /s\w+ \(HTTP 403\)"),
        (503, EngineUnreachable, "not ready"),
        (500, EngineRefused, "HTTP 500"),
        (422, EngineRefused, "HTTP 422"),
        (404, EngineRefused, "HTTP 404"),
    ],
)
async def test_statuses(engine: HttpEngine, serve: Serve, status: int, kind: type[EngineError], cause: str) -> None:
    address = await serve(answering({"error": "x"}, status), answering({"error": "x"}, status))
    with pytest.raises(kind, match=cause):
        await engine.read(address, OPEN)
    with pytest.raises(kind, match=cause):
        await engine.update(address, OPEN, wanted(1))


KEYS = {
    "none": EngineKeys(),
    "API key": EngineKeys(api="k-api"),
    "both": EngineKeys(api="k-api", admin="k-admin"),
    "admin key": EngineKeys(admin="k-admin"),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
async def test_each_path_gets_the_key_that_it_asks_for(engine: HttpEngine, serve: Serve, keys: EngineKeys) -> None:
    """As `sglang/srt/utils/auth.py` has it; `tests/engine/test_auth_of_releases.py` holds that against the releases."""
    server, sent = Server(), {}

    def noting(handler: Handler) -> Handler:
        async def noted(request: web.Request) -> web.StreamResponse:
            sent[request.path] = request.headers.get("Authorization")
            return await handler(request)

        return noted

    address = await serve(noting(server.info), noting(server.update))
    await engine.update(address, keys, wanted(5))
    await engine.read(address, keys)
    admin = keys.admin or keys.api
    assert sent == {
        "/set_internal_state": f"Bearer {admin}" if admin else None,
        "/server_info": f"Bearer {keys.api}" if keys.api else None,
    }


async def test_a_refused_key_is_told_and_not_shown(engine: HttpEngine, serve: Serve) -> None:
    address = await serve(answering({"error": "Unauthorized"}, 401), answering({"error": "Unauthorized"}, 401))
    keys = EngineKeys(api="k-api", admin="k-admin")
    for request in (engine.read(address, keys), engine.update(address, keys, wanted(1))):
        with pytest.raises(EngineUnauthorized, match=r"refuses the key sent to /s\w+ \(HTTP 401\)") as caught:
            await request
        assert "k-" not in str(caught.value)
    assert "k-" not in repr(keys)


async def test_a_redirect_is_not_followed(engine: HttpEngine, serve: Serve) -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/")

    with pytest.raises(EngineRefused, match="HTTP 302"):
        await engine.read(await serve(elsewhere), OPEN)


async def test_nobody_listens(engine: HttpEngine) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = EngineAddress(host="127.0.0.1", port=probe.getsockname()[1])
        with pytest.raises(EngineUnreachable, match="Connect call failed"):
            await engine.read(address, OPEN)
    with pytest.raises(EngineUnreachable, match=r"\[::1\]:1 could not be asked"):
        await engine.read(EngineAddress(host="::1", port=1), OPEN)


async def test_a_server_that_hangs_or_drips_is_given_up_in_time(engine: HttpEngine, serve: Serve) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    for handler in (hang, drip):
        address = await serve(handler, handler)
        started = time.monotonic()
        with pytest.raises(EngineUnreachable, match="no reply to /server_info within 1 s"):
            await engine.read(address, OPEN)
        with pytest.raises(EngineUnreachable, match="no reply to /set_internal_state within 1 s"):
            await engine.update(address, OPEN, wanted(3))
        assert time.monotonic() - started < 4


async def test_a_connection_that_is_cut(engine: HttpEngine) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        address = EngineAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        with pytest.raises(EngineUnreachable, match="could not be asked"):
            await engine.read(address, OPEN)


async def test_an_endless_answer_is_cut_off(engine: HttpEngine, serve: Serve) -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**20)

    with pytest.raises(EngineRefused, match="more than 8388608 bytes"):
        await engine.read(await serve(flood), OPEN)


async def test_proxies_of_the_environment_are_not_for_pods(
    engine: HttpEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = Server()
    assert (await engine.read(await serve(server.info), OPEN)).thresholds == (8,)


async def test_many_pods_at_once(engine: HttpEngine, serve: Serve) -> None:
    server = Server()
    addresses = [await serve(server.info) for _ in range(5)] * 20
    states = await asyncio.gather(*(engine.read(address, OPEN) for address in addresses))
    assert len(states) == 100


async def test_close_without_use_and_twice(serve: Serve) -> None:
    unused = HttpEngine(timeout_seconds=1)
    await unused.close()
    used = HttpEngine(timeout_seconds=1)
    await used.read(await serve(Server().info), OPEN)
    await used.close()
    await used.close()

"""What is not a whole, successful answer of a Prometheus: each becomes a sentence, and never a number.

A server on loopback gives the answers; each is sent as raw bytes, since most of them no proper server would give.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import json
import pathlib
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from sglang_operator.adapters.prometheus import PrometheusMetrics
from sglang_operator.api.reasons import Reason
from sglang_operator.errors import MetricsError
from sglang_operator.settings import Settings
from sglang_operator.tuning.queries import Queries
from sglang_operator.tuning.samples import MetricsSnapshot

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TOKEN = "eyJhbGciOi.secret.value"
LABELS = {
    "namespace": "team",
    "pod": "pod",
    "mode": "on",
    "batch_size": "9-12",
    "window": "0+30",
    "series": "sglang:spec_x",
}
QUERIES = len(dataclasses.fields(Queries))

Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


class RealMonotonic:
    """NOW stands still; the monotonic side runs, for deadlines."""

    def now(self) -> datetime:
        return NOW

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def http(status: int, body: bytes, *, kind: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def vector(value: str = "1", *, at: datetime = NOW, **changes: object) -> dict[str, object]:
    data = {"resultType": "vector", "result": [{"metric": LABELS, "value": [at.timestamp(), value]}]}
    return {"status": "success", "data": data | changes}


def said(document: object, status: int = 200) -> bytes:
    return http(status, json.dumps(document).encode())


class Fake:
    """A server that answers each request with `answer`, in a thread with an event loop of its own."""

    def __init__(self, answer: bytes | Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(5)

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        return f"http{'s' if self._tls else ''}://127.0.0.1:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(request)
                if isinstance(self.answer, bytes):
                    writer.write(self.answer)
                    await writer.drain()
                else:
                    await self.answer(writer, request)
        writer.close()

    def stop(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Fake]]:
    fakes: list[Fake] = []

    def start(answer: bytes | Answer, tls: ssl.SSLContext | None = None) -> Fake:
        fakes.append(Fake(answer, tls))
        return fakes[-1]

    yield start
    for fake in fakes:
        fake.stop()


def client(url: str, **settings: object) -> PrometheusMetrics:
    return PrometheusMetrics(Settings.model_validate({"prometheus_url": url, **settings}), RealMonotonic())


async def ask(url: str, **settings: object) -> MetricsSnapshot:
    metrics = client(url, **settings)
    try:
        return await metrics.snapshot()
    finally:
        await metrics.close()


async def failure(url: str, **settings: object) -> MetricsError:
    with pytest.raises(MetricsError) as caught:
        await ask(url, **settings)
    return caught.value


async def test_the_fake_itself_is_understood(serve: Callable[..., Fake]) -> None:
    fake = serve(said(vector("7")))
    snapshot = await ask(fake.url)
    assert [(mode.tokens, mode.seconds) for mode in snapshot.modes] == [(7.0, 7.0)]
    assert len(fake.requests) == QUERIES
    assert all(f"time={NOW.timestamp():.3f}".encode() in request for request in fake.requests)
    assert snapshot.taken_at == NOW


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "", "1e400", "-1", " 1", "0x10", "1_0", "²"])
async def test_a_value_that_is_no_number_is_no_sample(serve: Callable[..., Fake], value: str) -> None:
    snapshot = await ask(serve(said(vector(value))).url)
    assert snapshot.modes == ()
    assert snapshot.loads == ()
    assert snapshot.ignored.bad_number == QUERIES


async def test_an_empty_vector_is_no_data_and_no_error(serve: Callable[..., Fake]) -> None:
    snapshot = await ask(serve(said(vector(result=[]))).url)
    assert (snapshot.modes, snapshot.loads) == ((), ())


async def test_a_compressed_answer_is_read(serve: Callable[..., Fake]) -> None:
    body = gzip.compress(json.dumps(vector("7")).encode())
    snapshot = await ask(serve(http(200, body, extra="Content-Encoding: gzip\r\n")).url)
    assert snapshot.modes[0].tokens == 7.0


INVALID = {
    "scalar": (said(vector(resultType="scalar", result=[0, "1"])), "instant vector"),
    "matrix": (said(vector(resultType="matrix")), "instant vector"),
    "string": (said(vector(resultType="string", result=[0, "x"])), "instant vector"),
    "no data": (said({"status": "success"}), "instant vector"),
    "error in a 200": (said({"status": "error", "error": "too many samples"}), "too many samples"),
    "warnings": (said({**vector(), "warnings": ["store gateway timed out"]}), "may be partial: ['store gateway"),
    "html": (http(200, b"<!doctype html><title>Log in</title>", kind="text/html"), "login page"),
    "text": (http(200, b"ok", kind="text/plain"), "other than JSON"),
    "empty body": (http(200, b""), "other than JSON"),
    "deep": (http(200, b"[" * 100_000), "other than JSON"),
    "bare NaN": (http(200, json.dumps(vector()).replace('"1"', "NaN").encode()), "other than JSON"),
    "number for text": (said(vector(result=[{"metric": LABELS, "value": [NOW.timestamp(), 1]}])), "without a value"),
    "no labels": (said(vector(result=[{"value": [NOW.timestamp(), "1"]}])), "without labels"),
    "labels of numbers": (said(vector(result=[{"metric": {"pod": 1}, "value": [0, "1"]}])), "without labels"),
    "rows of text": (said(vector(result=["x"])), "without labels"),
    "time as text": (said(vector(result=[{"metric": LABELS, "value": ["x", "1"]}])), "without a time"),
    "ten minutes ago": (said(vector(at=NOW - timedelta(minutes=10))), "another moment, over 5 s"),
    "ten minutes ahead": (said(vector(at=NOW + timedelta(minutes=10))), "another moment, over 5 s"),
    "bad query": (said({"status": "error", "errorType": "bad_data", "error": "parse error"}, 400), "parse error"),
    "not found": (http(404, b"404 page not found", kind="text/plain"), "without /api/v1"),
    "elsewhere": (http(302, b"", extra="Location: https://login.example.com/\r\n"), "elsewhere (HTTP 302)"),
}


@pytest.mark.parametrize(("answer", "cause"), INVALID.values(), ids=INVALID.keys())
async def test_an_answer_that_is_not_usable_says_why(serve: Callable[..., Fake], answer: bytes, cause: str) -> None:
    fake = serve(answer)
    error = await failure(fake.url)
    assert error.reason == Reason.METRICS_INVALID
    assert cause in str(error)
    assert f"Prometheus at {fake.url.removeprefix('http://')}" in str(error)
    assert str(error).endswith((".", "?"))
    assert len(fake.requests) == 1


UNREACHABLE = {
    "no token": (http(401, b"Unauthorized"), "HTTP 401"),
    "wrong token": (http(403, b"Forbidden"), "HTTP 403"),
    "down": (http(503, b"Service Unavailable", extra="Retry-After: 3600\r\n"), "HTTP 503"),
    "overloaded": (said({"status": "error", "error": "query timed out in queue"}, 503), "query timed out in queue"),
    "too many": (http(429, b""), "HTTP 429"),
}


@pytest.mark.parametrize(("answer", "cause"), UNREACHABLE.values(), ids=UNREACHABLE.keys())
async def test_a_server_that_does_not_serve_says_why(serve: Callable[..., Fake], answer: bytes, cause: str) -> None:
    started = time.monotonic()
    error = await failure(serve(answer).url)
    assert error.reason == Reason.METRICS_UNREACHABLE
    assert cause in str(error)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}", b"SSH-2.0-OpenSSH\r\n"])
async def test_a_connection_that_ends_early(serve: Callable[..., Fake], answer: bytes) -> None:
    async def once(writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(answer)
        writer.close()

    error = await failure(serve(once).url)
    assert error.reason == Reason.METRICS_UNREACHABLE
    assert "can't be reached (" in str(error)


async def test_a_refused_connection_and_a_wrong_name() -> None:
    error = await failure("http://127.0.0.1:1")
    assert error.reason == Reason.METRICS_UNREACHABLE
    assert "Connection refused" in str(error)
    assert "does not resolve" in str(await failure("http://prometheus.invalid:9090"))
    assert "no usable address" in str(await failure("http://prometheus:port"))


async def test_no_address_is_a_reason_of_its_own() -> None:
    error = await failure("")
    assert error.reason == Reason.NOT_CONFIGURED
    assert "SGLANG_OPERATOR_PROMETHEUS_URL" in str(error)


async def test_a_password_in_the_address_stays_out_of_the_sentence() -> None:
    error = await failure("http://user:hunter2@127.0.0.1:1")
    assert "hunter2" not in str(error)
    assert "127.0.0.1:1" in str(error)
    assert error.__cause__ is None


async def test_the_token_is_read_again_at_each_request(serve: Callable[..., Fake], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    fake = serve(said(vector()))
    metrics = client(fake.url, prometheus_bearer_token_file=str(file))
    for token in ("first", "second\n"):
        file.write_text(token)
        await metrics.snapshot()
    await metrics.close()
    sent = [line for request in fake.requests for line in request.split(b"\r\n") if line.startswith(b"Authorization")]
    assert sent == [b"Authorization: Bearer first"] * QUERIES + [b"Authorization: Bearer second"] * QUERIES


@pytest.mark.parametrize("content", [None, "", " \n", f"{TOKEN}\nX-Admin: yes", f"{TOKEN}\x00", f"{TOKEN}ü"])
async def test_a_token_file_that_is_not_usable(
    serve: Callable[..., Fake], tmp_path: pathlib.Path, content: str | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    fake = serve(said(vector()))
    error = await failure(fake.url, prometheus_bearer_token_file=str(file))
    assert str(file) in str(error)
    assert TOKEN not in str(error)
    assert fake.requests == []


async def test_no_token_in_any_sentence(serve: Callable[..., Fake], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)

    async def echo(writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(said({"status": "error", "error": request.decode()[-400:]}, 400))

    error = await failure(serve(echo).url, prometheus_bearer_token_file=str(file))
    assert TOKEN not in str(error)
    assert error.__cause__ is None


@pytest.fixture
def tls(tmp_path: pathlib.Path) -> ssl.SSLContext:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    return context


async def test_a_private_certificate(serve: Callable[..., Fake], tls: ssl.SSLContext, tmp_path: pathlib.Path) -> None:
    fake = serve(said(vector()), tls)
    error = await failure(fake.url)
    assert error.reason == Reason.METRICS_UNREACHABLE
    assert "self-signed certificate" in str(error)
    assert "SGLANG_OPERATOR_PROMETHEUS_CA_FILE" in str(error)
    assert (await ask(fake.url, prometheus_ca_file=str(tmp_path / "ca.pem"))).modes
    error = await failure(fake.url, prometheus_ca_file=str(tmp_path / "gone.pem"))
    assert "gone.pem, which is no file" in str(error)


async def silence(writer: asyncio.StreamWriter, request: bytes) -> None:
    await asyncio.sleep(60)


async def drip(writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    await spaces(writer)


async def header_drip(writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    await spaces(writer)


async def spaces(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("answer", [silence, drip, header_drip])
async def test_a_server_that_never_ends_holds_nothing_up(serve: Callable[..., Fake], answer: Answer) -> None:
    """Time-out 1 s: a pass may take 2.5 s. Meanwhile the event loop runs, and a third pass is refused at once."""
    metrics = client(serve(answer).url, prometheus_timeout_seconds=1)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    ticking = asyncio.create_task(tick())
    started = time.monotonic()
    first, second = await asyncio.gather(metrics.snapshot(), metrics.snapshot(), return_exceptions=True)
    took = time.monotonic() - started
    ticking.cancel()
    assert isinstance(first, MetricsError)
    assert isinstance(second, MetricsError)
    assert first.reason == Reason.METRICS_UNREACHABLE
    assert took < 3.5
    assert ticks > took / 0.05 / 3
    started = time.monotonic()
    with pytest.raises(MetricsError):
        await metrics.snapshot()
    assert time.monotonic() - started < 3.5
    await metrics.close()


@pytest.mark.parametrize("answer", [silence, drip])
async def test_a_pass_ends_by_itself_at_its_deadline(serve: Callable[..., Fake], answer: Answer) -> None:
    """Three passes, each right after the last: none finds two earlier ones still running."""
    metrics = client(serve(answer).url, prometheus_timeout_seconds=1)
    for _ in range(3):
        with pytest.raises(MetricsError, match=r"did not answer all queries|gave no answer within 1 s"):
            await metrics.snapshot()
    await metrics.close()


async def test_stuck_passes_do_not_pile_up(serve: Callable[..., Fake]) -> None:
    metrics = client(serve(header_drip).url, prometheus_timeout_seconds=1)
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(MetricsError, match="did not answer all queries"):
            await metrics.snapshot()
    for _ in range(5):
        with pytest.raises(MetricsError, match="without an end"):
            await metrics.snapshot()
    assert threading.active_count() <= before + 2
    await metrics.close()


async def test_an_endless_body_is_cut_off(serve: Callable[..., Fake]) -> None:
    async def flood(writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b" " * 2**20)
            await writer.drain()

    error = await failure(serve(flood).url, prometheus_timeout_seconds=20)
    assert "more than 64 MiB" in str(error)

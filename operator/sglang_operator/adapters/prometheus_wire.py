"""What crosses the wire to Prometheus: the token going out, the answer coming back, and what a failure means.

Nothing here sends anything. `Inspector` sits between the HTTP library and the Prometheus client and lets only whole,
successful vectors through.
"""

from __future__ import annotations

import io
import json
import re
import ssl
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import requests
import urllib3
from requests.auth import AuthBase

from sglang_operator.api.reasons import Reason
from sglang_operator.errors import MetricsError
from sglang_operator.settings import PREFIX
from sglang_operator.tuning.samples import Row

URL_SETTING: Final = f"{PREFIX}PROMETHEUS_URL"
TOKEN_SETTING: Final = f"{PREFIX}PROMETHEUS_BEARER_TOKEN_FILE"
CA_SETTING: Final = f"{PREFIX}PROMETHEUS_CA_FILE"

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_EVALUATION_TOLERANCE_SECONDS: Final = 5.0
_MAX_QUOTED: Final = 200
_CREDENTIALS: Final = re.compile(r"\b(bearer|basic)\s+\S+", re.IGNORECASE)


class BearerFile(AuthBase):
    """Puts the token of a file into each request, read anew each time since mounted tokens are rotated."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Set the header; raises MetricsError, which names the file and never its content."""
        try:
            token = Path(self._path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            detail = _strerror(error) or "it is not plain text"
            raise _token_error(f"can't be read ({detail})", self._path) from None
        # The HTTP library would quote a token that breaks the header in its error.
        if not token or not token.isprintable() or any(letter.isspace() for letter in token):
            raise _token_error("must hold one token and nothing else", self._path)
        request.headers["Authorization"] = f"Bearer {token}"
        return request


def _token_error(problem: str, path: str) -> MetricsError:
    return MetricsError(Reason.METRICS_UNREACHABLE, f"The token file {path} {problem}; check {TOKEN_SETTING}.")


class Inspector:
    """A response hook: reads the body within bounds and lets only whole, successful vectors through to the client.

    `expired` says whether the pass is past its deadline, and `late` makes the error for it.
    """

    def __init__(self, name: str, expired: Callable[[], bool], late: Callable[[], MetricsError]) -> None:
        self._name = name
        self._expired = expired
        self._late = late

    def __call__(self, response: requests.Response, **_: object) -> None:
        """Read and check one response; raises MetricsError, and closes the connection then."""
        try:
            if response.is_redirect or response.is_permanent_redirect:
                raise self._bad(
                    f"sends queries elsewhere (HTTP {response.status_code}); set {URL_SETTING} to the target"
                )
            body = self._read(response)
            self._check(response, body)
        except BaseException:
            response.close()
            raise
        response.raw = io.BytesIO(body)

    def _read(self, response: requests.Response) -> bytes:
        body = bytearray()
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            body += chunk
            if self._expired():
                raise self._late()
            if len(body) > _MAX_BODY_BYTES:
                raise self._bad(f"answered with more than {_MAX_BODY_BYTES // 2**20} MiB")
        return bytes(body)

    def _check(self, response: requests.Response, body: bytes) -> None:
        answer = _parse(body)
        problem = answer.get("error") if isinstance(answer, dict) else None
        said = f": {_quoted(problem)}" if isinstance(problem, str) and problem else ""
        status = response.status_code
        if status in (401, 403):
            raise self._unreachable(f"refused the operator (HTTP {status}); check {TOKEN_SETTING} and its rights")
        if status in (408, 429) or status >= 500:
            raise self._unreachable(f"answered with HTTP {status}{said}; see its log")
        if status == 404 and not said:
            raise self._bad(f"has no query interface there (HTTP 404); set {URL_SETTING} without /api/v1")
        if status != 200:
            raise self._bad(f"did not run the query (HTTP {status}{said})")
        if not isinstance(answer, dict):
            page = "an HTML page, a login page perhaps" if body.lstrip()[:1] == b"<" else "something other than JSON"
            raise self._bad(f"answered with {page}; check {URL_SETTING} and {TOKEN_SETTING}")
        if answer.get("status") != "success":
            raise self._bad(f"reports an error{said}")
        warnings = answer.get("warnings")
        if warnings:
            raise self._bad(f"warns that its answer may be partial: {_quoted(str(warnings))}")
        data = answer.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "vector" or not isinstance(data.get("result"), list):
            raise self._bad("answered with something other than an instant vector; is it a Prometheus?")

    def _bad(self, problem: str) -> MetricsError:
        return MetricsError(Reason.METRICS_INVALID, f"{self._name} {problem}.")

    def _unreachable(self, problem: str) -> MetricsError:
        return MetricsError(Reason.METRICS_UNREACHABLE, f"{self._name} {problem}.")


class BadRow(Exception):
    """A row of an answer has not the documented form; the message says what it has instead."""


def parse_row(item: object, at: datetime) -> Row:
    """Read one element of an instant vector: `{"metric": {label: text}, "value": [unix time, text]}`.

    Raises:
        BadRow: the element has another form, or was evaluated for another moment than `at`.
    """
    metric = item.get("metric") if isinstance(item, dict) else None
    value = item.get("value") if isinstance(item, dict) else None
    if not isinstance(metric, dict) or not all(isinstance(text, str) for text in metric.values()):
        raise BadRow("a row without labels")
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise BadRow("a row without a value")
    evaluated, number = value
    if isinstance(evaluated, bool) or not isinstance(evaluated, (int, float)):
        raise BadRow("a row without a time")
    if abs(evaluated - at.timestamp()) > _EVALUATION_TOLERANCE_SECONDS:
        raise BadRow(f"values of another moment, over {_EVALUATION_TOLERANCE_SECONDS:.0f} s from the one asked for")
    labels = {name: metric.get(name, "") for name in ("namespace", "pod", "mode", "batch_size", "window", "series")}
    return Row(value=number, **labels)


def failure(error: BaseException, *, name: str, ca_file: str, seconds: float) -> MetricsError:
    """Say what a failed request means; `name` is the server's, `seconds` the time it had.

    The error's own text stays out: it may quote the address with user and password, or a header.
    """
    causes = list(_causes(error))
    certificate = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    system = next((cause for cause in causes if _strerror(cause)), None)
    if certificate:
        detail = getattr(certificate, "verify_message", None) or certificate.reason or "TLS failure"
        why = f"can't be trusted ({detail}); set {CA_SETTING} to its certificate authority"
    elif ca_file and not Path(ca_file).is_file():
        why = f"can't be asked: {CA_SETTING} names {ca_file}, which is no file"
    elif _any(causes, urllib3.exceptions.NameResolutionError):
        why = f"has a name that does not resolve; check {URL_SETTING}"
    elif _any(causes, requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema):
        why = f"has no usable address; check {URL_SETTING}"
    elif not system and _any(causes, requests.Timeout, urllib3.exceptions.TimeoutError):
        why = f"gave no answer within {seconds:.0f} s; check that it runs and that the network lets the operator in"
    else:
        detail = _strerror(system) if system else type(causes[-1]).__name__
        why = f"can't be reached ({detail}); check that it runs, and {URL_SETTING}"
    return MetricsError(Reason.METRICS_UNREACHABLE, f"{name} {why}.")


def _any(causes: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(cause, kinds) for cause in causes)


def _parse(body: bytes) -> object:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _quoted(text: str) -> str:
    text = _CREDENTIALS.sub(r"\1 …", text)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and everything that it wraps, outermost first; the HTTP libraries nest in several ways."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        nested = (*current.args, getattr(current, "reason", None), current.__cause__, current.__context__)
        waiting.extend(item for item in nested if isinstance(item, BaseException))


def _strerror(error: BaseException) -> str | None:
    return error.strerror if isinstance(error, OSError) and error.errno and isinstance(error.strerror, str) else None

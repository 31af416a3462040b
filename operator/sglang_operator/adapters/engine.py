"""The HTTP interface of one SGLang server: read the live settings from every rank, and ask for new ones.

The reply to a live update is no proof: older releases answer `true` to what they decline, and a server with several
schedulers answers for each. So `update` only reports a plain refusal, and `read` is what counts.

A server with keys wants the API key for `/server_info`, and for `/set_internal_state` the admin key if it has one,
else the API key (`sglang/srt/utils/auth.py`). A key goes into the request's header and nowhere else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Final

import aiohttp

from sglang_operator.adapters.ports import EngineAddress, EngineKeys, EngineState, LiveSettings
from sglang_operator.api.names import PROBE_FIELD, PROBE_MAX_PERMILLE, THRESHOLD_FIELD, THRESHOLD_MAX
from sglang_operator.errors import EngineRefused, EngineUnauthorized, EngineUnreachable

_INFO_PATH: Final = "/server_info"
_OLD_INFO_PATH: Final = "/get_server_info"
_UPDATE_PATH: Final = "/set_internal_state"
_MAX_BODY_BYTES: Final = 8 * 1024 * 1024
_MAX_CONNECTIONS: Final = 32
_MAX_TEXT: Final = 256
_LARGEST: Final = {THRESHOLD_FIELD: THRESHOLD_MAX, PROBE_FIELD: PROBE_MAX_PERMILLE}


class HttpEngine:
    """Implements `ports.Engine` with one client session, made at the first request and ended by `close`."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def read(self, address: EngineAddress, keys: EngineKeys) -> EngineState:
        """Read the live settings back from every rank.

        Raises:
            EngineUnreachable: no connection, no reply in time, or the server is still starting.
            EngineUnauthorized: the server wants an API key, or another one.
            EngineRefused: the server answers, but not as a patched SGLang does.
        """
        status, body = await self._request("GET", address, _INFO_PATH, keys.api)
        if status == 404:
            status, body = await self._request("GET", address, _OLD_INFO_PATH, keys.api)
        _check_status(status, body, address, _INFO_PATH, keys.api)
        return _parse_info(_parse_json(body, address), address)

    async def update(self, address: EngineAddress, keys: EngineKeys, settings: LiveSettings) -> None:
        """Ask the server for new settings in one request. Only a read-back proves that they were taken.

        Raises:
            EngineUnreachable, EngineUnauthorized: as for `read`.
            EngineRefused: a value is out of range, or a rank declined them.
        """
        wanted = _checked(settings)
        key = keys.admin or keys.api
        status, body = await self._request("POST", address, _UPDATE_PATH, key, {"server_args": wanted})
        _check_status(status, body, address, _UPDATE_PATH, key)
        replies = _parse_json(body, address)
        if isinstance(replies, list) and any(reply is False for reply in replies):
            declined = ", ".join(str(rank) for rank, reply in enumerate(replies) if reply is False)
            asked = ", ".join(f"{field} {value}" for field, value in wanted.items())
            raise EngineRefused(
                f"{_name(address)} declined {asked} on rank {declined} of {len(replies)}; its log says why."
            )

    async def close(self) -> None:
        """Close the session, if there is one."""
        session, self._session = self._session, None
        if session:
            await session.close()

    async def _request(
        self,
        method: str,
        address: EngineAddress,
        path: str,
        key: str | None,
        payload: Mapping[str, object] | None = None,
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._client().request(
                method, f"http://{_name(address)}{path}", json=payload, headers=headers, allow_redirects=False
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MAX_BODY_BYTES:
                        raise EngineRefused(f"{_name(address)} answers {path} with more than {_MAX_BODY_BYTES} bytes.")
                return response.status, bytes(body)
        except TimeoutError as error:
            seconds = self._timeout.total
            raise EngineUnreachable(f"{_name(address)} gave no reply to {path} within {seconds:g} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(f"{_name(address)} could not be asked for {path}: {_cause(error)}.") from error

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A pod's address may belong to another pod at the next request, so no connection is kept.
            connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, limit_per_host=2, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False)
        return self._session


def _name(address: EngineAddress) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


def _cause(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or type(error.os_error).__name__
    return str(error) or type(error).__name__


def _checked(settings: LiveSettings) -> dict[str, int]:
    """Return the fields of the update."""
    wanted = {THRESHOLD_FIELD: settings.batch_size}
    if settings.probe_permille is not None:
        wanted[PROBE_FIELD] = settings.probe_permille
    for field, value in wanted.items():
        if not 0 <= value <= _LARGEST[field]:
            raise EngineRefused(f"{field} must lie between 0 and {_LARGEST[field]}, not {value}.")
    return wanted


def _check_status(status: int, body: bytes, address: EngineAddress, path: str, key: str | None) -> None:
    if status in (401, 403):
        trouble = "refuses the key sent to" if key else "wants an API key for"
        raise EngineUnauthorized(f"{_name(address)} {trouble} {path} (HTTP {status}).")
    if status in (502, 503, 504):
        raise EngineUnreachable(f"{_name(address)} is not ready to answer (HTTP {status}).")
    if status == 400 and (detail := _detail(body)):
        raise EngineRefused(f"{_name(address)} refuses {path}: {detail}")
    if status != 200:
        raise EngineRefused(f"{_name(address)} answered with HTTP {status}; is an SGLang server listening there?")


def _detail(body: bytes) -> str | None:
    """Return the server's own words about a refusal, as FastAPI sends them."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return _text(answer.get("detail")) if isinstance(answer, dict) else None


def _parse_json(body: bytes, address: EngineAddress) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EngineRefused(f"{_name(address)} answered with something that is not JSON.") from error


def _parse_info(info: object, address: EngineAddress) -> EngineState:
    states = info.get("internal_states") if isinstance(info, dict) else None
    if not isinstance(states, list) or not states:
        raise EngineRefused(f"{_name(address)} reports no internal_states; is an SGLang server listening there?")
    ranks = [_parse_rank(state, rank, address) for rank, state in enumerate(states)]
    telling = next((rank for rank in ranks if not rank.active), ranks[0])
    probes = [rank.probe_permilles for rank in ranks]
    return dataclasses.replace(
        telling,
        thresholds=tuple(value for rank in ranks for value in rank.thresholds),
        probe_permilles=None if None in probes else tuple(value for probe in probes for value in probe or ()),
    )


def _parse_rank(state: object, rank: int, address: EngineAddress) -> EngineState:
    if not isinstance(state, dict) or state.get(THRESHOLD_FIELD) is None:
        raise EngineRefused(
            f"{_name(address)} doesn't report {THRESHOLD_FIELD} on rank {rank}: the server runs without the patch."
        )
    report = state.get("specpatch")
    if not isinstance(report, dict):
        report = {"active": False, "inactive_reason": "the server doesn't say whether its patch acts"}
    active, generation = report.get("active"), report.get("generation")
    if not isinstance(active, bool):
        raise EngineRefused(
            f"{_name(address)} reports specpatch.active {str(active)[:40]!r} on rank {rank}; it must be true or false."
        )
    probes = None if state.get(PROBE_FIELD) is None else (_number(state, PROBE_FIELD, rank, address),)
    return EngineState(
        thresholds=(_number(state, THRESHOLD_FIELD, rank, address),),
        probe_permilles=probes,
        active=active,
        inactive_reason=None if active else _text(report.get("inactive_reason")),
        release=_text(report.get("release")),
        off_path=_text(report.get("off_path")),
        off_path_reason=_text(report.get("off_path_reason")),
        generation=generation if isinstance(generation, int) and not isinstance(generation, bool) else None,
    )


def _number(state: Mapping[str, object], field: str, rank: int, address: EngineAddress) -> int:
    value, largest = state[field], _LARGEST[field]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise EngineRefused(
            f"{_name(address)} reports {field} {str(value)[:40]!r} on rank {rank}; it must be an integer between 0 "
            f"and {largest}."
        )
    return value


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) and value else None

"""The HTTP interface of one SGLang server: read the threshold from every rank, and ask for a new one.

The reply to a live update is no proof: older releases answer `true` to what they decline, and a server with several
schedulers answers for each. So `set_threshold` only reports a plain refusal, and `read` is what counts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Final

import aiohttp

from sglang_operator.adapters.ports import EngineAddress, EngineState
from sglang_operator.api.names import THRESHOLD_FIELD, THRESHOLD_MAX
from sglang_operator.errors import EngineRefused, EngineUnauthorized, EngineUnreachable

_INFO_PATH: Final = "/server_info"
_OLD_INFO_PATH: Final = "/get_server_info"
_UPDATE_PATH: Final = "/set_internal_state"
_MAX_BODY_BYTES: Final = 8 * 1024 * 1024
_MAX_CONNECTIONS: Final = 32
_MAX_TEXT: Final = 256


class HttpEngine:
    """Implements `ports.Engine` with one client session, made at the first request and ended by `close`."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def read(self, address: EngineAddress) -> EngineState:
        """Read the threshold back from every rank.

        Raises:
            EngineUnreachable: no connection, no reply in time, or the server is still starting.
            EngineUnauthorized: the server wants an API key.
            EngineRefused: the server answers, but not as a patched SGLang does.
        """
        status, body = await self._request("GET", address, _INFO_PATH)
        if status == 404:
            status, body = await self._request("GET", address, _OLD_INFO_PATH)
        _check_status(status, address)
        return _parse_info(_parse_json(body, address), address)

    async def set_threshold(self, address: EngineAddress, batch_size: int) -> None:
        """Ask the server for a new threshold. Only a read-back proves that it was taken.

        Raises:
            EngineUnreachable, EngineUnauthorized: as for `read`.
            EngineRefused: the value is out of range, or a rank declined it.
        """
        if not 0 <= batch_size <= THRESHOLD_MAX:
            raise EngineRefused(f"The threshold must lie between 0 and {THRESHOLD_MAX}, not {batch_size}.")
        payload = {"server_args": {THRESHOLD_FIELD: batch_size}}
        status, body = await self._request("POST", address, _UPDATE_PATH, payload)
        _check_status(status, address)
        replies = _parse_json(body, address)
        if isinstance(replies, list) and any(reply is False for reply in replies):
            declined = ", ".join(str(rank) for rank, reply in enumerate(replies) if reply is False)
            raise EngineRefused(
                f"{_name(address)} declined the threshold {batch_size} on rank {declined} of {len(replies)}; its log "
                "says why."
            )

    async def close(self) -> None:
        """Close the session, if there is one."""
        session, self._session = self._session, None
        if session:
            await session.close()

    async def _request(
        self, method: str, address: EngineAddress, path: str, payload: Mapping[str, object] | None = None
    ) -> tuple[int, bytes]:
        try:
            async with self._client().request(
                method, f"http://{_name(address)}{path}", json=payload, allow_redirects=False
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


def _check_status(status: int, address: EngineAddress) -> None:
    if status in (401, 403):
        raise EngineUnauthorized(
            f"{_name(address)} wants an API key (HTTP {status}); start the server without --api-key and "
            "--admin-api-key, and protect it by a network policy."
        )
    if status in (502, 503, 504):
        raise EngineUnreachable(f"{_name(address)} is not ready to answer (HTTP {status}).")
    if status != 200:
        raise EngineRefused(f"{_name(address)} answered with HTTP {status}; is an SGLang server listening there?")


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
    return dataclasses.replace(telling, thresholds=tuple(value for rank in ranks for value in rank.thresholds))


def _parse_rank(state: object, rank: int, address: EngineAddress) -> EngineState:
    if not isinstance(state, dict) or state.get(THRESHOLD_FIELD) is None:
        raise EngineRefused(
            f"{_name(address)} doesn't report {THRESHOLD_FIELD} on rank {rank}: the server runs without the patch."
        )
    value, report = state[THRESHOLD_FIELD], state.get("specpatch")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= THRESHOLD_MAX:
        raise EngineRefused(
            f"{_name(address)} reports {THRESHOLD_FIELD} {str(value)[:40]!r} on rank {rank}; it must be an integer "
            f"between 0 and {THRESHOLD_MAX}."
        )
    if not isinstance(report, dict):
        report = {"active": False, "inactive_reason": "the server doesn't say whether its patch acts"}
    active, generation = report.get("active"), report.get("generation")
    if not isinstance(active, bool):
        raise EngineRefused(
            f"{_name(address)} reports specpatch.active {str(active)[:40]!r} on rank {rank}; it must be true or false."
        )
    return EngineState(
        thresholds=(value,),
        active=active,
        inactive_reason=None if active else _text(report.get("inactive_reason")),
        release=_text(report.get("release")),
        off_path=_text(report.get("off_path")),
        generation=generation if isinstance(generation, int) and not isinstance(generation, bool) else None,
    )


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) and value else None

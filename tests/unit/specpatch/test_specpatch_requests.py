"""Live updates at the HTTP server: what is refused there with 400 and a sentence, and what passes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from sglang_specpatch.runtime import requests, settings

NO_VALUES: tuple[object, ...] = (3.0, "3", True, None, -1, 10**9)
BAD = [{name: value} for name in settings.LIVE for value in NO_VALUES] + [
    {settings.THRESHOLD: 8, settings.PROBE_PERMILLE: 501},
    {settings.THRESHOLD: -1, settings.PROBE_PERMILLE: 30},
]
GOOD = {settings.THRESHOLD: 3, settings.PROBE_PERMILLE: 30}


class Request:
    """A request with a body."""

    def __init__(self, body: object) -> None:
        self.body = body

    async def json(self) -> object:
        return self.body


@pytest.fixture(autouse=True)
def refused(monkeypatch: pytest.MonkeyPatch) -> type[Exception]:
    class HTTPException(Exception):
        def __init__(self, status_code: int, detail: str) -> None:
            super().__init__(f"{status_code} {detail}")

    web = ModuleType("fastapi")
    vars(web)["HTTPException"] = HTTPException
    monkeypatch.setitem(sys.modules, "fastapi", web)
    return HTTPException


@pytest.mark.parametrize("name", settings.LIVE)
async def test_a_live_update_is_refused_where_no_worker_can_obey(name: str, refused: type[Exception]) -> None:
    sentence = f"400 Live update refused: {name} has no effect on this server: no worker of this SGLang release has a"
    with pytest.raises(refused, match=sentence):
        await requests.refuse_request(Request({"server_args": {"pp_max_micro_batch_size": 4, name: 8}}))


@pytest.mark.parametrize("body", [{"server_args": {"pp_max_micro_batch_size": 4}}, {"server_args": None}, [], None])
async def test_requests_for_other_keys_pass_there(body: object) -> None:
    await requests.refuse_request(Request(body))


@pytest.mark.parametrize("updates", BAD)
async def test_a_bad_value_is_answered_with_a_sentence(updates: dict[str, object], refused: type[Exception]) -> None:
    with pytest.raises(refused, match="400 Live update refused: speculative_"):
        await requests.check_request(Request({"server_args": {**updates, "other": 1}}))


@pytest.mark.parametrize(
    "body", [{"server_args": GOOD}, {"server_args": {"other": "3"}}, {"server_args": None}, [], None]
)
async def test_other_requests_pass(body: object) -> None:
    await requests.check_request(Request(body))

"""What a server says whose worker can't stop drafting."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from sglang_specpatch.runtime import hooks, inactive, settings


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
        await inactive.refuse_request(Request({"server_args": {"pp_max_micro_batch_size": 4, name: 8}}))


@pytest.mark.parametrize("body", [{"server_args": {"pp_max_micro_batch_size": 4}}, {"server_args": None}, [], None])
async def test_other_requests_pass(body: object) -> None:
    await inactive.refuse_request(Request(body))


@pytest.mark.parametrize("name", ["EAGLEWorkerV2", "EAGLEWorker", "NGRAMWorker", "MultiLayerEagleWorkerV2"])
def test_the_read_back_names_the_worker_that_was_loaded(name: str) -> None:
    """Also where it has the name of the one that could: the patch is attached by its `__init__`, or not at all."""
    state: dict[str, object] = {}
    hooks.add_readback(SimpleNamespace(draft_worker=type(name, (), {})()), state)
    said = state["specpatch"]
    assert isinstance(said, dict)
    assert said["active"] is False
    assert said["inactive_reason"] == (
        f"worker {name} has no zero-step state (only EAGLEWorkerV2 of SGLang 0.5.14 and newer has)"
    )

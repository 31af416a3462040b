"""Which key SGLang wants for which path, by each release's own code: what operator and simulated server rely on."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import pytest
from real_sglang import RELEASES, Workshop

from engine_sim.auth import allowed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

ADMIN_PATH = "/set_internal_state"
OPEN_PATHS = ("/health", "/metrics")
PATHS = (ADMIN_PATH, "/flush_cache", "/server_info", "/get_server_info", "/generate", "/v1/models", *OPEN_PATHS)
KEYS = (None, "api")
ADMIN_KEYS = (None, "admin")
HEADERS = (None, "", "api", "Bearer api", "bearer api", "Bearer admin", "Bearer api admin", "Basic api", "Bearer ")


class Judge(Protocol):
    """A release's decision on one request."""

    def __call__(self, path: str, authorization: str | None, api_key: str | None, admin_api_key: str | None) -> bool:
        """Whether the request is let in."""


def module_at(file: Path) -> ModuleType:
    """Import one file of SGLang alone: this one needs nothing else."""
    name = f"auth_of_{file.parents[3].name}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def administrative(source: Path) -> Iterator[str]:
    """The paths that the server's source marks as administrative."""
    for node in ast.walk(ast.parse((source / "srt/entrypoints/http_server.py").read_text(encoding="utf-8"))):
        if not isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            continue
        if "auth_level(AuthLevel.ADMIN_OPTIONAL)" not in [ast.unparse(mark) for mark in node.decorator_list]:
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and mark.args and isinstance(mark.args[0], ast.Constant):
                yield str(mark.args[0].value)


def has_admin_key(source: Path) -> bool:
    return (source / "srt/utils/auth.py").exists()


def judge_with_levels(source: Path) -> Judge:
    auth, marked = module_at(source / "srt/utils/auth.py"), set(administrative(source))
    assert ADMIN_PATH in marked
    assert "/server_info" not in marked

    def judge(path: str, authorization: str | None, api_key: str | None, admin_api_key: str | None) -> bool:
        decision = auth.decide_request_auth(
            method="GET",
            path=path,
            authorization_header=authorization,
            api_key=api_key,
            admin_api_key=admin_api_key,
            auth_level=auth.AuthLevel.ADMIN_OPTIONAL if path in marked else auth.AuthLevel.NORMAL,
        )
        return bool(decision.allowed)

    return judge


def judge_with_one_key(source: Path) -> Judge:
    """The rule before there was an admin key: a function of a module whose import needs everything, so taken alone."""
    assert "admin_api_key" not in (source / "srt/server_args.py").read_text(encoding="utf-8")
    tree = ast.parse((source / "srt/utils/common.py").read_text(encoding="utf-8"))
    (rule,) = [node for node in tree.body if getattr(node, "name", "") == "add_api_key_middleware"]
    namespace: dict[str, Any] = {"ORJSONResponse": lambda content, status_code: False}
    exec(compile(ast.Module([rule], []), "common.py", "exec"), namespace)
    found: list[Callable[[object, object], Awaitable[bool]]] = []
    app = SimpleNamespace(middleware=lambda kind: found.append)

    async def let_in(request: object) -> bool:
        return True

    def judge(path: str, authorization: str | None, api_key: str | None, admin_api_key: str | None) -> bool:
        if api_key is None:
            return True
        namespace["add_api_key_middleware"](app, api_key)
        headers = {} if authorization is None else {"Authorization": authorization}
        request = SimpleNamespace(method="GET", url=SimpleNamespace(path=path), headers=headers)
        return asyncio.run(_awaited(found.pop()(request, let_in)))

    return judge


async def _awaited(answer: Awaitable[bool]) -> bool:
    return await answer


@pytest.fixture(scope="module", params=RELEASES)
def source(request: pytest.FixtureRequest, workshop: Workshop) -> Path:
    return workshop.source(request.param)


@pytest.fixture
def judge(source: Path) -> Judge:
    return judge_with_levels(source) if has_admin_key(source) else judge_with_one_key(source)


def test_the_keys_that_the_operator_sends_open_the_paths_that_it_asks_for(source: Path, judge: Judge) -> None:
    """`/server_info` with the API key, live updates with the admin key if there is one, else with the API key."""
    for api, admin in itertools.product(KEYS, ADMIN_KEYS if has_admin_key(source) else (None,)):
        for path, sent in (("/server_info", api), ("/get_server_info", api), (ADMIN_PATH, admin or api)):
            assert judge(path, f"Bearer {sent}" if sent else None, api, admin), (path, api, admin)


def test_a_keyed_server_is_closed_but_for_probes_and_prometheus(source: Path, judge: Judge) -> None:
    admin = "admin" if has_admin_key(source) else None
    judged = {path: judge(path, None, "api", admin) for path in PATHS}
    assert judged == {path: path in OPEN_PATHS for path in PATHS}


def test_the_simulated_server_judges_like_the_release(source: Path, judge: Judge) -> None:
    if not has_admin_key(source):
        pytest.skip("the simulated server has the rule with two keys, of 0.5.8 and newer")
    for path, api, admin, header in itertools.product(PATHS, KEYS, ADMIN_KEYS, HEADERS):
        simulated = allowed(method="GET", path=path, authorization=header, api_key=api, admin_api_key=admin)
        assert simulated == judge(path, header, api, admin), (path, api, admin, header)

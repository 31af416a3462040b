"""The chart's roles against the calls that the operator makes: all of them, and nothing else."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlsplit

import pytest
from helmchart import RELEASE, Manifest, Values, find, render
from kubernetes.aio.client import ApiClient

from sglang_operator.adapters.kube import CALLS, SECRETS, KubernetesCluster
from sglang_operator.adapters.ports import ChildKind
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.reasons import EventReason
from sglang_operator.handlers.heartbeat import Heartbeat
from sglang_operator.handlers.registry import build_registry
from sglang_operator.reconcile.queue import WorkQueue
from sglang_operator.status.summary import EventLine

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

NEEDED: frozenset[Right] = frozenset((call.group, call.resource, verb) for call in CALLS for verb in call.verbs)


def rights(role: Manifest) -> list[Right]:
    return [
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


@pytest.mark.parametrize(("values", "kind"), [({}, "ClusterRole"), ({"watchNamespaces": ["team-a"]}, "Role")])
def test_roles_hold_what_the_operator_calls_and_nothing_else(values: Values, kind: str) -> None:
    granted = rights(find(render(values), kind, RELEASE))
    assert len(granted) == len(set(granted)), "a right is granted twice"
    assert set(granted) == NEEDED


@pytest.mark.parametrize(("values", "kind"), [({}, "ClusterRole"), ({"watchNamespaces": ["team-a"]}, "Role")])
def test_the_right_to_read_secrets_can_be_withheld_and_no_other_goes_with_it(values: Values, kind: str) -> None:
    assert SECRETS.verbs == {"get"}, "never listed, never watched"
    withheld = render({**values, "rbac": {"readSecrets": False}})
    assert NEEDED - set(rights(find(withheld, kind, RELEASE))) == {("", "secrets", "get")}
    for role in (item for item in withheld if item["kind"] in ("ClusterRole", "Role")):
        assert "secrets" not in [resource for _, resource, _ in rights(role)]


class Answer:
    """The part of an HTTP response that the adapter reads."""

    def __init__(self, status: int, body: Manifest) -> None:
        self.status = status
        self._body = body

    async def read(self) -> bytes:
        return json.dumps(self._body).encode()


class Recorder:
    """Stands in for the client and notes the right that each request takes."""

    def __init__(self) -> None:
        self.seen: set[Right] = set()

    async def param_serialize(self, method: str, path: str, **_: object) -> tuple[str, str]:
        return method, path

    async def call_api(self, method: str, path: str, **_: object) -> Answer:
        parts = urlsplit(path).path.strip("/").split("/")
        group = "" if parts[0] == "api" else parts[1]
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if rest[0] == "namespaces":
            rest = rest[2:]
        resource = "/".join([rest[0], *rest[2:3]])
        verb = {"GET": "get" if len(rest) > 1 else "list", "POST": "create", "DELETE": "delete", "PATCH": "patch"}[
            method
        ]
        self.seen.add((group, resource, verb))
        if verb == "patch" and "/" not in resource:
            # The object may not be there yet: then the API server asks for this right as well.
            self.seen.add((group, resource, "create"))
        return Answer(200, {"items": [], "metadata": {}})


class FixedClock:
    """A clock that stands still."""

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def monotonic_seconds(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


async def everything_that_the_adapter_does(recorder: Recorder) -> None:
    cluster = KubernetesCluster(cast(ApiClient, recorder), FixedClock(), watch_namespaces=(), identity="test")
    key = ServiceKey("team-a", "chat")
    metadata = {"namespace": key.namespace, "name": key.name, "uid": "1"}
    await cluster.get_service(key)
    await cluster.list_services()
    for kind in ChildKind:
        await cluster.get_child(kind, key)
        await cluster.list_children(kind, key)
        await cluster.apply({"kind": kind.value, "metadata": metadata})
        await cluster.delete_child(kind, key)
    await cluster.list_pods(key)
    await cluster.get_secret(key.namespace, "keys")
    await cluster.apply_status(key, {})
    await cluster.record_event({"metadata": metadata}, EventLine(reason=EventReason.READY, message="ready"))


def test_each_declared_call_is_made() -> None:
    recorder = Recorder()
    asyncio.run(everything_that_the_adapter_does(recorder))
    watched = {right for right in NEEDED if right[2] == "watch"}
    owners = {(names.GROUP, f"{names.PLURAL}/finalizers", "update")}
    assert recorder.seen == NEEDED - watched - owners


def test_each_watch_has_a_handler() -> None:
    clock = FixedClock()
    registry = build_registry(WorkQueue(), Heartbeat(clock), clock)
    # kopf has no public list of its handlers' resources.
    handled = {(selector.group, selector.any_name) for selector in registry._watching.get_all_selectors()}
    assert handled == {(group, resource) for group, resource, verb in NEEDED if verb == "watch"}

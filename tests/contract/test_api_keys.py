"""Servers with API keys, from the Secret to the threshold read back: a real API server, and a server that wants keys.

The operator works as its own account, with the rights that the chart gives it. Only the kubelet is played: a pod is
made from the Deployment's template and told to be ready, at the address of the simulated server.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import inferenceservice
import pytest
from helmchart import RELEASE, Values, find, render
from kubernetes.aio.client import ApiClient, Configuration
from simulated_engine import Running, engine_arguments, eventually, free_port, make_patched_tree, started

from apiserver import ApiServer, Refused
from sglang_operator.adapters.clock import SystemClock
from sglang_operator.adapters.engine import HttpEngine
from sglang_operator.adapters.kube import KubernetesCluster
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.reconcile.memory import Memory
from sglang_operator.reconcile.service import ServiceReconciler
from sglang_operator.reconcile.threshold import Synchronizer
from sglang_operator.render.enginepatch import PatchArchive

Manifest = dict[str, Any]

ACCOUNT = "operator"
API_KEY, ADMIN_KEY = "hunter2", "swordfish"
PATCHED = json.dumps({"result": "Patched", "reason": "Patched", "message": "", "release": "0.5.23"})


@dataclasses.dataclass(kw_only=True)
class World:
    """A namespace with a service, the operator that serves it, and one server."""

    server: ApiServer
    namespace: str
    operator: ServiceReconciler
    engine: Running

    @property
    def secret_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets/keys"

    async def make_pass(self) -> None:
        await self.operator.reconcile(ServiceKey(self.namespace, "case"))

    def write_secret(self, **values: str) -> None:
        self.server.apply(
            self.secret_path,
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": values},
        )

    def decide(self, batch_size: int) -> None:
        """Change the fixed threshold."""
        path = f"{inferenceservice.collection(self.namespace)}/case"
        change = {"spec": {"speculation": {"disableThreshold": {"batchSize": batch_size}}}}
        self.server.request("PATCH", path, change, headers={"Content-Type": "application/merge-patch+json"})

    def synced(self) -> Manifest:
        stored = self.server.get(f"{inferenceservice.collection(self.namespace)}/case")
        found: Manifest = next(item for item in stored["status"]["conditions"] if item["type"] == "ThresholdSynced")
        return found

    def start_pod(self) -> None:
        """Do what the Deployment controller and the kubelet would."""
        deployments = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        template = copy.deepcopy(self.server.get(f"{deployments}/case")["spec"]["template"])
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        metadata = {**template["metadata"], "name": "case-0"}
        self.server.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        ready = {"type": "Ready", "status": "True"}
        image = {"image": "x", "imageID": "x", "restartCount": 0}
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [{"type": "PodScheduled", "status": "True"}, ready],
            "initContainerStatuses": [
                {"name": "patch", "ready": True, "state": {"terminated": {"exitCode": 0, "message": PATCHED}}, **image}
            ],
            "containerStatuses": [
                {"name": "engine", "ready": True, "started": True, "state": {"running": {}}, **image}
            ],
        }
        self.server.request(
            "PATCH",
            f"{pods}/case-0/status",
            {"status": status},
            headers={"Content-Type": "application/strategic-merge-patch+json"},
        )

    def everything_stored(self) -> str:
        """All that people with the right to look into the namespace can see, Secrets aside."""
        core = f"/api/v1/namespaces/{self.namespace}"
        paths = [f"{core}/{kind}" for kind in ("pods", "events", "configmaps", "services")]
        paths += [f"/apis/apps/v1/namespaces/{self.namespace}/deployments", inferenceservice.collection(self.namespace)]
        return "\n".join(json.dumps(self.server.get(path)) for path in paths)


def account_with_the_charts_rights(server: ApiServer, namespace: str, values: Values) -> str:
    """Make an account with the chart's Role in the namespace; returns its token."""
    rules = find(render({**values, "watchNamespaces": [namespace]}), "Role", RELEASE)["rules"]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    group = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ACCOUNT}}
    server.create(f"{rbac}/roles", {**group, "kind": "Role", "rules": rules})
    binding = {
        **group,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    }
    server.create(f"{rbac}/rolebindings", binding)
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.create(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = server.create(f"{accounts}/{ACCOUNT}/token", request)["status"]["token"]
    return token


async def until_the_rights_hold(server: ApiServer, namespace: str, token: str) -> None:
    async def hold() -> bool:
        path = f"{inferenceservice.collection(namespace)}"
        try:
            server.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        except Refused:
            return False
        return True

    await eventually(hold)


def keyed_service(port: int) -> Manifest:
    drafting = {**inferenceservice.DRAFTING, "disableThreshold": {"mode": "Fixed", "batchSize": 5}}
    keys = {
        "apiKeySecretRef": {"name": "keys", "key": "clients"},
        "adminApiKeySecretRef": {"name": "keys", "key": "admin"},
    }
    return inferenceservice.service({"engine": {"port": port, **keys}, "speculation": drafting})


@contextlib.asynccontextmanager
async def world_of(server: ApiServer, folder: Path, values: Values) -> AsyncIterator[World]:
    namespace, port = server.create_namespace("keys"), free_port()
    token = account_with_the_charts_rights(server, namespace, values)
    await until_the_rights_hold(server, namespace, token)
    configuration = Configuration()
    configuration.host, configuration.ssl_ca_cert = server.url, str(server.ca_file)
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    clock, http = SystemClock(), HttpEngine(timeout_seconds=5)
    cluster = KubernetesCluster(ApiClient(configuration), clock, watch_namespaces=(namespace,), identity="test")
    operator = ServiceReconciler(
        cluster=cluster,
        clock=clock,
        synchronizer=Synchronizer(engine=http, clock=clock, read_back_interval_seconds=0),
        memory=Memory(),
        patch=PatchArchive(digest="a" * 64, content=b"the engine patch"),
        metrics_configured=False,
    )
    arguments = dataclasses.replace(
        engine_arguments(make_patched_tree(folder)), port=port, api_key=API_KEY, admin_api_key=ADMIN_KEY
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        stack.push_async_callback(http.close)
        engine = await started(stack, arguments, ready=False)
        made = World(server=server, namespace=namespace, operator=operator, engine=engine)
        made.write_secret(clients=API_KEY, admin=ADMIN_KEY)
        server.create(inferenceservice.collection(namespace), keyed_service(port))
        await made.make_pass()
        made.start_pod()
        yield made


async def value_of(world: World) -> object:
    """What the server holds, by its own word to somebody with the API key."""
    headers = {"Authorization": f"Bearer {API_KEY}"}
    status, info = await world.engine.get("/server_info", headers=headers)
    assert status == 200
    return info["internal_states"][0][names.THRESHOLD_FIELD]


async def test_a_keyed_server_follows_and_every_trouble_with_the_key_has_its_own_condition(
    crd_server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with world_of(crd_server, tmp_path, {}) as world:
        assert (await world.engine.get("/server_info"))[0] == 401
        assert [(await world.engine.get(path))[0] for path in ("/health", "/metrics")] == [200, 200]
        assert await value_of(world) == 8
        await world.make_pass()
        assert await value_of(world) == 5
        assert (world.synced()["status"], world.synced()["reason"]) == ("True", "Synced")

        world.write_secret(clients="another", admin="yet another")
        world.decide(6)
        await world.make_pass()
        assert world.synced()["reason"] == "LiveUpdateUnauthorized"
        assert f"key clients of Secret {world.namespace}/keys" in world.synced()["message"]
        assert await value_of(world) == 5

        world.write_secret(clients=API_KEY, admin="yet another")
        await world.make_pass()
        assert world.synced()["reason"] == "LiveUpdateUnauthorized"
        assert "/set_internal_state" in world.synced()["message"], "the API key alone does not open live updates"

        world.server.delete(world.secret_path)
        await world.make_pass()
        assert world.synced()["reason"] == "APIKeyUnavailable"
        assert f"Secret {world.namespace}/keys does not exist" in world.synced()["message"]

        world.write_secret(clients=API_KEY, admin=ADMIN_KEY)
        await world.make_pass()
        assert await value_of(world) == 6
        assert world.synced()["status"] == "True"
        shown = world.everything_stored() + caplog.text
        assert "ThresholdNotSynced" in shown
        for key in (API_KEY, ADMIN_KEY, "another"):
            assert key not in shown


async def test_without_the_right_to_read_secrets_the_service_says_so_and_serves(
    crd_server: ApiServer, tmp_path: Path
) -> None:
    async with world_of(crd_server, tmp_path, {"rbac": {"readSecrets": False}}) as world:
        await world.make_pass()
        synced = world.synced()
        assert (synced["status"], synced["reason"]) == ("False", "APIKeyUnavailable")
        assert f"the operator may not read Secret {world.namespace}/keys: install the chart with" in synced["message"]
        stored = world.server.get(f"{inferenceservice.collection(world.namespace)}/case")["status"]["conditions"]
        assert {item["type"]: item["status"] for item in stored}["Ready"] == "True"
        assert await value_of(world) == 8

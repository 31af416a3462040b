"""The chart on a real API server: valid objects, roles that suffice and give no more, Helm's comings and goings."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import inferenceservice
import pytest
from helmchart import CHART, EVERYTHING, NAMESPACE, NOTHING, Manifest, Values, find, helm, pod_template, render
from kubernetes.aio.client import ApiClient, Configuration

import apiserver
from sglang_operator.adapters.clock import SystemClock
from sglang_operator.adapters.kube import CALLS, ApiCall, KubernetesCluster
from sglang_operator.adapters.ports import ChildKind
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.reasons import EventReason
from sglang_operator.errors import ClusterForbidden
from sglang_operator.status.summary import EventLine

ACCOUNT = "sglang-operator"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
OTHERS = {"ServiceMonitor", "PodMonitor"}
"""Kinds of the Prometheus operator, which the API server doesn't know."""
CRD_PATH = f"{PATHS['CustomResourceDefinition']}/{names.PLURAL}.{names.GROUP}"


@pytest.fixture(scope="module")
def namespaces(api_server: apiserver.ApiServer) -> None:
    for name, labels in (
        (NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"}),
        ("team-a", {}),
        ("team-b", {}),
    ):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        api_server.apply(f"/api/v1/namespaces/{name}", namespace)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("values", [{}, EVERYTHING, NOTHING], ids=["default", "everything", "nothing"])
def test_objects_are_valid_to_the_last_field(api_server: apiserver.ApiServer, values: Values) -> None:
    for item in render(values):
        if item["kind"] not in OTHERS:
            path = PATHS[item["kind"]].format(item["metadata"].get("namespace"))
            checked = {"dryRun": "All", "fieldValidation": "Strict"}
            api_server.apply(f"{path}/{item['metadata']['name']}", item, **checked)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("values", [{}, EVERYTHING, NOTHING], ids=["default", "everything", "nothing"])
def test_pods_are_admitted_where_the_restricted_profile_is_enforced(
    api_server: apiserver.ApiServer, values: Values
) -> None:
    objects = render(values)
    template = pod_template(objects)
    operator = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    for pod in (operator, find(objects, "Pod")):
        api_server.create(PATHS["Pod"].format(NAMESPACE), pod, dryRun="All")
    weakened = json.loads(json.dumps(operator))
    weakened["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(apiserver.Refused, match="violates PodSecurity"):
        api_server.create(PATHS["Pod"].format(NAMESPACE), weakened, dryRun="All")


OBSERVED: Manifest = {
    "observedGeneration": 1,
    "replicas": 0,
    "readyReplicas": 0,
    "updatedReplicas": 0,
    "selector": "a=b",
}


@dataclass(frozen=True)
class Installed:
    """A release on the server, with a token of the operator's account and one of an account without any role."""

    server: apiserver.ApiServer
    namespace: str
    served: str
    token: str
    stranger: str
    scope: str


def token_of(server: apiserver.ApiServer, namespace: str, account: str) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = server.create(f"{PATHS['ServiceAccount'].format(namespace)}/{account}/token", request)
    token: str = made["status"]["token"]
    return token


@pytest.fixture(scope="module", params=["cluster", "namespaces"])
def installed(request: pytest.FixtureRequest, crd_server: apiserver.ApiServer) -> Iterator[Installed]:
    server, scope = crd_server, request.param
    namespace, served = server.create_namespace("operator"), server.create_namespace("served")
    values: Values = {
        "watchNamespaces": [served] if scope == "namespaces" else [],
        # The server has it already.
        "crds": {"install": False},
    }
    arguments = [ACCOUNT, "--namespace", namespace]
    helm("install", *arguments, str(CHART), values=values, kubeconfig=server.kubeconfig)
    stranger = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}
    server.create(PATHS["ServiceAccount"].format(namespace), stranger)
    yield Installed(
        server=server,
        namespace=namespace,
        served=served,
        token=token_of(server, namespace, ACCOUNT),
        stranger=token_of(server, namespace, "stranger"),
        scope=scope,
    )
    helm("uninstall", *arguments, kubeconfig=server.kubeconfig)


def allowed(installed: Installed, token: str, namespace: str) -> set[tuple[str, str, str]]:
    """Return what the API server says an account may do in a namespace: group, resource, verb."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    review = installed.server.request("POST", path, body, headers={"Authorization": f"Bearer {token}"}).json()
    return {
        (group, resource, verb)
        for rule in review["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def given(installed: Installed, namespace: str) -> set[tuple[str, str, str]]:
    """Return what the operator may do in a namespace beyond what every account may."""
    return allowed(installed, installed.token, namespace) - allowed(installed, installed.stranger, namespace)


def test_operator_may_do_what_it_calls_and_nothing_else(installed: Installed) -> None:
    needed = {(call.group, call.resource, verb) for call in CALLS for verb in call.verbs}
    assert given(installed, installed.served) == needed
    elsewhere = needed if installed.scope == "cluster" else set()
    assert given(installed, installed.namespace) == elsewhere
    assert given(installed, "kube-system") == elsewhere


def children(service: Manifest) -> list[Manifest]:
    owner = {
        "apiVersion": service["apiVersion"],
        "kind": service["kind"],
        "name": service["metadata"]["name"],
        "uid": service["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {"app": "chat"}
    metadata = {"name": "chat", "namespace": service["metadata"]["namespace"], "ownerReferences": [owner]}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": "example/x:1"}]}}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"batchSize": "32"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"selector": {"matchLabels": labels}, "template": pod},
        },
    ]


async def test_operator_does_its_work_with_these_rights(installed: Installed) -> None:
    key = ServiceKey(installed.served, "chat")
    made = installed.server.create(inferenceservice.collection(key.namespace), inferenceservice.service(name=key.name))
    scope = () if installed.scope == "cluster" else (installed.served,)
    configuration = Configuration()
    configuration.host, configuration.ssl_ca_cert = installed.server.url, str(installed.server.ca_file)
    configuration.api_key["BearerToken"] = f"Bearer {installed.token}"
    cluster = KubernetesCluster(ApiClient(configuration), SystemClock(), watch_namespaces=scope, identity="test")
    try:
        assert await cluster.get_service(key)
        assert key.name in [service["metadata"]["name"] for service in await cluster.list_services()]
        for manifest in children(made):
            kind = ChildKind(manifest["kind"])
            await cluster.apply(manifest)
            await cluster.list_children(kind, key)
            await cluster.delete_child(kind, key)
        await cluster.list_pods(key)
        assert await cluster.get_secret(key.namespace, "keys") is None
        await cluster.apply_status(key, OBSERVED)
        await cluster.record_event(made, EventLine(reason=EventReason.READY, message="ready"))
        with pytest.raises(ClusterForbidden):
            await cluster._request("GET", f"api/v1/namespaces/{key.namespace}/secrets")
        with pytest.raises(ClusterForbidden):
            await cluster._request("DELETE", f"apis/{names.API_VERSION}/namespaces/{key.namespace}/{names.PLURAL}/chat")
    finally:
        await cluster.close()
    events = installed.server.get(f"/api/v1/namespaces/{key.namespace}/events")["items"]
    assert [event["involvedObject"]["name"] for event in events] == [key.name]
    stored = installed.server.get(f"{inferenceservice.collection(key.namespace)}/{key.name}")
    assert stored["status"]["selector"] == OBSERVED["selector"]


class Check(Protocol):
    """The program of the chart's test pod, as a module."""

    ACCOUNT: Path
    ask: Callable[..., dict[str, Any]]

    def main(self) -> int:
        """Run it."""


@pytest.fixture
def check(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The program, as the operator's account."""
    spec = importlib.util.spec_from_file_location("chart_check", CHART / "files" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "token").write_text(installed.token)
    (tmp_path / "ca.crt").write_bytes(installed.server.ca_file.read_bytes())
    host, _, port = installed.server.url.removeprefix("https://").partition(":")
    monkeypatch.setattr(module, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    for name in [name for name in os.environ if name.startswith("SGLANG_OPERATOR_")]:
        monkeypatch.delenv(name)
    if installed.scope == "namespaces":
        monkeypatch.setenv("SGLANG_OPERATOR_WATCH_NAMESPACES", installed.served)
    return cast(Check, module)


def test_check_of_the_installation_passes(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 0
    assert capsys.readouterr().out == f"{names.API_VERSION} is served, and the operator's rights suffice\n"


def test_check_names_what_is_missing(
    check: Check, installed: Installed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = ApiCall("apps", "statefulsets", frozenset({"delete"}))
    monkeypatch.setattr(check, "CALLS", (*CALLS, lacking))
    where = "all namespaces" if installed.scope == "cluster" else f"namespace {installed.served}"
    assert check.main() == 1
    assert capsys.readouterr().out == f"must be allowed to delete statefulsets of API group 'apps' in {where}\n"


def test_check_wants_the_right_to_read_secrets_only_where_the_chart_gives_it(
    check: Check, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = check.ask

    def without_secrets(path: str, body: Any = None) -> dict[str, Any]:
        asked = body["spec"]["resourceAttributes"]["resource"] if body else ""
        return {"status": {"allowed": False}} if asked == "secrets" else really(path, body)

    monkeypatch.setattr(check, "ask", without_secrets)
    assert check.main() == 1
    assert "must be allowed to get secrets of API group ''" in capsys.readouterr().out
    monkeypatch.setenv("MAY_READ_SECRETS", "false")
    assert check.main() == 0


def test_check_says_that_the_resource_is_not_served(
    check: Check, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "API_VERSION", "serving.example.org/v1")
    assert check.main() == 1
    assert "serving.example.org/v1 is not served (HTTP 404)" in capsys.readouterr().out


def test_release_comes_and_goes_without_touching_services(crd_server: apiserver.ApiServer) -> None:
    """Install, upgrade, uninstall, install again: CRD and InferenceServices stay, and nothing waits."""
    server, namespace = crd_server, crd_server.create_namespace("release")
    release = ["comes-and-goes", "--namespace", namespace]
    deployment = f"{PATHS['Deployment'].format(namespace)}/comes-and-goes-sglang-operator"
    chart = [*release, str(CHART)]

    # The CRD is there, applied by hand: what a change from plain manifests to Helm takes.
    helm("install", *chart, "--take-ownership", "--force-conflicts", kubeconfig=server.kubeconfig)
    service = server.create(inferenceservice.collection(namespace), inferenceservice.service())
    assert server.get(CRD_PATH)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"

    helm("upgrade", *chart, "--set", "image.tag=next", kubeconfig=server.kubeconfig)
    (container,) = server.get(deployment)["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":next")

    helm("uninstall", *release, kubeconfig=server.kubeconfig)
    with pytest.raises(apiserver.Refused, match="404"):
        server.get(deployment)
    kept = server.get(f"{inferenceservice.collection(namespace)}/case")
    assert kept["metadata"]["uid"] == service["metadata"]["uid"]

    helm("install", *chart, kubeconfig=server.kubeconfig)
    helm("uninstall", *release, kubeconfig=server.kubeconfig)
    server.delete(f"{inferenceservice.collection(namespace)}/case")
    with pytest.raises(apiserver.Refused, match="404"):
        server.get(f"{inferenceservice.collection(namespace)}/case")

"""A real API server takes what is rendered, keeps it, and has nothing left to write the second time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from golden_support import GoldenCase, golden_cases
from inferenceservice import collection
from render_support import only, rendered, service

from apiserver import ApiServer, Refused
from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.render.compare import covers
from sglang_operator.render.desired import Rendered

CASES = golden_cases()
RESTRICTED = [case for case in CASES if case.name != "placement-and-volumes"]
PATHS = {
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
}


def case_name(case: GoldenCase) -> str:
    return case.name


def path(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{PATHS[manifest['kind']].format(namespace=metadata['namespace'])}/{metadata['name']}"


def apply(server: ApiServer, manifests: Sequence[Manifest], **params: str) -> list[Manifest]:
    """Apply as the operator does: every child, conflicts forced, unknown fields refused."""
    return [
        server.apply(path(manifest), manifest, manager=names.FIELD_MANAGER_CHILDREN, fieldValidation="Strict", **params)
        for manifest in manifests
    ]


def render_in(namespace: str, changes: dict[str, Any] | None = None, *, speculates: bool = True) -> Rendered:
    given = service(changes, speculates=speculates)
    return rendered(given.model_copy(update={"namespace": namespace}))


def stored_deployment(server: ApiServer, result: Rendered) -> Manifest:
    return server.get(path(only(result, "Deployment")))


def bare_pod(result: Rendered) -> Manifest:
    """The pod that a ReplicaSet would make of the template."""
    template = copy.deepcopy(only(result, "Deployment")["spec"]["template"])
    template["metadata"]["name"] = "bare"
    return {"apiVersion": "v1", "kind": "Pod", **template}


@pytest.fixture(scope="module")
def restricted(api_server: ApiServer) -> str:
    name = api_server.create_namespace("restricted")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api_server.apply(
        f"/api/v1/namespaces/{name}",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
    )
    return name


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_the_custom_resource_of_each_case_is_accepted(crd_server: ApiServer, namespace: str, case: GoldenCase) -> None:
    crd_server.create(
        collection(namespace), case.custom_resource(namespace=namespace), dryRun="All", fieldValidation="Strict"
    )


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_every_child_is_accepted_and_then_is_as_desired(
    api_server: ApiServer, namespace: str, case: GoldenCase
) -> None:
    manifests = case.render(namespace=namespace).manifests
    apply(api_server, manifests, dryRun="All")
    stored = apply(api_server, manifests)
    for desired, live in zip(manifests, stored, strict=True):
        assert covers(live, desired), desired["metadata"]["name"]
    again = apply(api_server, manifests)
    assert [live["metadata"]["resourceVersion"] for live in again] == [
        live["metadata"]["resourceVersion"] for live in stored
    ], "applying the same again stored something"


@pytest.mark.parametrize("case", RESTRICTED, ids=case_name)
def test_pods_are_accepted_under_the_restricted_profile(
    api_server: ApiServer, restricted: str, case: GoldenCase
) -> None:
    pods = f"/api/v1/namespaces/{restricted}/pods"
    made = api_server.create(pods, bare_pod(case.render(namespace=restricted)), dryRun="All", fieldValidation="Strict")
    assert made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]


def test_the_restricted_profile_is_really_enforced(api_server: ApiServer, restricted: str) -> None:
    result = render_in(restricted, {"podTemplate.containerSecurityContext": {"allowPrivilegeEscalation": True}})
    with pytest.raises(Refused, match="violates PodSecurity"):
        api_server.create(f"/api/v1/namespaces/{restricted}/pods", bare_pod(result), dryRun="All")


def test_pods_with_the_clusters_own_classes_are_accepted(api_server: ApiServer, namespace: str) -> None:
    api_server.apply(
        "/apis/node.k8s.io/v1/runtimeclasses/nvidia",
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        },
    )
    api_server.apply(
        "/apis/scheduling.k8s.io/v1/priorityclasses/serving",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "serving"},
            "value": 1000,
        },
    )
    (case,) = [case for case in CASES if case not in RESTRICTED]
    pod = bare_pod(case.render(namespace=namespace))
    made = api_server.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All", fieldValidation="Strict")
    assert made["spec"]["priority"] == 1000


@pytest.mark.parametrize(
    ("first", "second"), [("RollingUpdate", "Recreate"), ("Recreate", "RollingUpdate")], ids=["to-recreate", "back"]
)
def test_the_strategy_can_be_changed_both_ways(api_server: ApiServer, namespace: str, first: str, second: str) -> None:
    apply(api_server, render_in(namespace, {"rollout": {"strategy": first}}).manifests)
    after = render_in(namespace, {"rollout": {"strategy": second}})
    apply(api_server, after.manifests)
    live = stored_deployment(api_server, after)
    assert live["spec"]["strategy"]["type"] == second
    assert covers(live, only(after, "Deployment"))


def test_a_changed_port_replaces_the_old_one(api_server: ApiServer, namespace: str) -> None:
    apply(api_server, render_in(namespace).manifests)
    after = render_in(namespace, {"engine.port": 8000})
    apply(api_server, after.manifests)
    ports = api_server.get(path(only(after, "Service")))["spec"]["ports"]
    assert [port["port"] for port in ports] == [8000]
    (container,) = stored_deployment(api_server, after)["spec"]["template"]["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [8000]


def test_without_speculation_nothing_of_the_patch_is_left(api_server: ApiServer, namespace: str) -> None:
    apply(api_server, render_in(namespace).manifests)
    after = render_in(namespace, speculates=False)
    apply(api_server, after.manifests)
    live = stored_deployment(api_server, after)
    pod = live["spec"]["template"]["spec"]
    assert not pod.get("initContainers")
    assert {volume["name"] for volume in pod["volumes"]} == {"shm", "home", "cache", "tmp"}
    assert names.ANNOTATION_PATCH not in live["metadata"]["annotations"]
    assert names.ANNOTATION_PATCH not in live["spec"]["template"]["metadata"]["annotations"]


def test_what_the_user_takes_back_is_removed(api_server: ApiServer, namespace: str) -> None:
    wide = {
        "engine.env": [{"name": "A", "value": "1"}],
        "engine.resources": {"memory": "200Gi", "memoryLimit": "1.5Ti"},
        "podTemplate.nodeSelector": {"pool": "a"},
        "podTemplate.tolerations": [{"key": "a", "operator": "Exists"}],
        "podTemplate.affinity": {"podAntiAffinity": {}},
        "model.cache": {"claimName": "weights"},
    }
    before = render_in(namespace, wide)
    apply(api_server, before.manifests)
    assert covers(stored_deployment(api_server, before), only(before, "Deployment"))
    after = render_in(namespace)
    apply(api_server, after.manifests)
    pod = stored_deployment(api_server, after)["spec"]["template"]["spec"]
    plain = only(after, "Deployment")["spec"]["template"]["spec"]
    assert covers(pod, plain)
    assert covers(plain["affinity"], pod["affinity"]), "nothing more than is rendered"
    assert not pod.get("nodeSelector")
    assert len(pod["tolerations"]) == 1
    assert {item["name"] for item in pod["containers"][0]["env"]} == {
        item["name"] for item in plain["containers"][0]["env"]
    }


def test_a_hand_on_a_child_is_seen_and_undone(api_server: ApiServer, namespace: str) -> None:
    result = render_in(namespace)
    apply(api_server, result.manifests)
    deployment = only(result, "Deployment")
    scaled = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": deployment["metadata"]}
    api_server.apply(path(deployment), {**scaled, "spec": {"replicas": 7}}, manager="somebody")
    assert not covers(stored_deployment(api_server, result), deployment)
    apply(api_server, result.manifests)
    assert covers(stored_deployment(api_server, result), deployment)


def test_a_mutating_webhooks_additions_are_left_alone(api_server: ApiServer, namespace: str) -> None:
    result = render_in(namespace)
    apply(api_server, result.manifests)
    deployment = only(result, "Deployment")
    sidecar = {"name": "mesh", "image": "example.com/mesh:1"}
    pod = {"containers": [sidecar, {"name": "engine", "env": [{"name": "MESH", "value": "1"}]}]}
    addition = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment["metadata"]["name"], "namespace": namespace},
        "spec": {"template": {"spec": pod}},
    }
    api_server.apply(path(deployment), addition, manager="mesh")
    assert covers(stored_deployment(api_server, result), deployment)
    apply(api_server, result.manifests)
    containers = stored_deployment(api_server, result)["spec"]["template"]["spec"]["containers"]
    assert {container["name"] for container in containers} == {"engine", "mesh"}


def test_the_engine_patch_cant_be_changed_under_running_pods(api_server: ApiServer, namespace: str) -> None:
    result = render_in(namespace)
    apply(api_server, result.manifests)
    config_map = copy.deepcopy(result.manifests[0])
    config_map["binaryData"]["specpatch.pyz"] = "b3RoZXI="
    with pytest.raises(Refused, match="immutable"):
        api_server.apply(path(config_map), config_map, manager="somebody")

"""The pods of the chart meet the restricted Pod Security Standard, whatever the values; and the roles stay small."""

from __future__ import annotations

from typing import Any

import pytest
from helmchart import EVERYTHING, NOTHING, Manifest, Values, find, pod_template, render

MATRIX: dict[str, Values] = {
    "default": {},
    "everything": EVERYTHING,
    "nothing": NOTHING,
    "namespaced": {"watchNamespaces": ["team-a"]},
}


@pytest.fixture(params=MATRIX, scope="module")
def objects(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(MATRIX[request.param])


def pods(objects: list[Manifest]) -> list[dict[str, Any]]:
    return [pod_template(objects)["spec"], find(objects, "Pod")["spec"]]


def test_restricted(objects: list[Manifest]) -> None:
    for pod in pods(objects):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


def test_no_user_is_forced(objects: list[Manifest]) -> None:
    # OpenShift gives each namespace users of its own; elsewhere the image's user holds.
    chosen = EVERYTHING["podSecurityContext"]
    for pod in pods(objects):
        assert pod["securityContext"].get("runAsUser") in (None, chosen["runAsUser"])


def test_what_is_writable_is_small_and_everything_else_read_only(objects: list[Manifest]) -> None:
    for pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["tmp"]["emptyDir"]["sizeLimit"] == "16Mi"
        for mount in pod["containers"][0]["volumeMounts"]:
            assert mount["name"] in volumes
            assert mount["mountPath"] == "/tmp" or mount["readOnly"] is True
            # A file mounted by subPath never changes: a rotated token would not arrive.
            assert "subPath" not in mount
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_secrets_are_mounted_where_the_settings_point() -> None:
    pod = pod_template(render(EVERYTHING))["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["prometheus-token"]["secret"] == {
        "secretName": "prometheus-reader",
        "items": [{"key": "bearer", "path": "token"}],
    }
    assert volumes["prometheus-ca"]["configMap"] == {
        "name": "company-ca",
        "items": [{"key": "bundle.pem", "path": "ca.crt"}],
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["prometheus-token"] == "/etc/sglang-operator/prometheus-token"
    assert mounts["prometheus-ca"] == "/etc/sglang-operator/prometheus-ca"


def test_no_secret_by_default() -> None:
    assert [volume["name"] for volume in pod_template(render())["spec"]["volumes"]] == ["tmp"]


def test_service_links_never_look_like_settings(objects: list[Manifest]) -> None:
    for pod in pods(objects):
        assert pod["enableServiceLinks"] is False


def test_token_is_mounted_only_where_it_is_used(objects: list[Manifest]) -> None:
    for pod in pods(objects):
        assert pod["automountServiceAccountToken"] is True
    for account in (item for item in objects if item["kind"] == "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_probes(objects: list[Manifest]) -> None:
    (container,) = pod_template(objects)["spec"]["containers"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name]["httpGet"] == {"path": "/healthz", "port": "health"}
        # The answer is computed anew every ten seconds and may take a moment on a busy node.
        assert container[name]["timeoutSeconds"] >= 2
    startup = container["startupProbe"]
    # The operator itself gives up waiting for the API server after 60 s, with a sentence: don't cut that short.
    assert startup["periodSeconds"] * startup["failureThreshold"] > 90


def test_resources() -> None:
    for pod in pods(render()):
        assert pod["containers"][0]["resources"] == {
            "requests": {"cpu": "100m", "memory": "192Mi"},
            "limits": {"memory": "512Mi"},
        }


def test_kubelet_changes_nothing_in_the_check(objects: list[Manifest]) -> None:
    (argument,) = find(objects, "Pod")["spec"]["containers"][0]["args"]
    compile(argument, "check.py", "exec")
    assert "$(" not in argument


def test_roles_stay_small(objects: list[Manifest]) -> None:
    for role in (item for item in objects if item["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            assert not {"pods/exec", "pods/portforward", "nodes"} & set(rule["resources"])
            assert "secrets" not in rule["resources"] or (rule["resources"], rule["verbs"]) == (["secrets"], ["get"])
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])

"""The pod: what it may write, how long it may take, what it is allowed to do."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from render_support import archive, engine, only, patcher, rendered, service, template

from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import SpecError
from sglang_operator.render import environment

FULL: dict[str, Any] = {
    "model.tokenSecretRef": {"name": "hub", "key": "token"},
    "engine.apiKeySecretRef": {"name": "keys", "key": "clients"},
    "engine.adminApiKeySecretRef": {"name": "keys", "key": "admin"},
    "engine.env": [{"name": "PYTHONPATH", "value": "/opt/packages"}, {"name": "EMPTY"}],
    "engine.resources": {"cpu": "16", "memory": "200Gi", "memoryLimit": "400Gi"},
    "podTemplate.volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "podTemplate.volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
}


def env(container: Manifest) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as refused:
        rendered(service(changes))
    assert refused.value.reason == "InvalidSpec"
    return str(refused.value)


def test_the_patch_container_sees_what_the_server_sees_but_for_gpus_and_secrets() -> None:
    given = service(FULL)
    patch, server = patcher(given), engine(given)
    for field in ("image", "imagePullPolicy", "volumeMounts", "securityContext"):
        assert patch[field] == server[field]
    assert server["env"][:3] == [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, secret, key in (
            ("HF_TOKEN", "hub", "token"),
            ("SGLANG_API_KEY", "keys", "clients"),
            ("SGLANG_ADMIN_API_KEY", "keys", "admin"),
        )
    ]
    assert patch["env"] == server["env"][3:]
    assert server["resources"] == {
        "requests": {"cpu": "16", "memory": "200Gi", "nvidia.com/gpu": "8"},
        "limits": {"memory": "400Gi", "nvidia.com/gpu": "8"},
    }
    assert patch["resources"] == {"requests": {"cpu": "16", "memory": "200Gi"}, "limits": {"memory": "400Gi"}}


def test_commands_of_both_containers() -> None:
    assert patcher(service())["command"] == [
        "python3",
        "/opt/specpatch/specpatch.pyz",
        "apply",
        "--to",
        "/opt/sglang-patched",
        "--termination-log",
        "/dev/termination-log",
    ]
    assert engine(service())["command"] == [
        "python3",
        "/opt/specpatch/specpatch.pyz",
        "run",
        "--tree",
        "/opt/sglang-patched",
        "--",
        "python3",
        "-m",
        "sglang.launch_server",
    ]


def test_without_speculation_nothing_is_patched_and_no_threshold_exists() -> None:
    given = service(speculates=False)
    pod = template(given)["spec"]
    assert "initContainers" not in pod
    assert engine(given)["command"] == ["python3", "-m", "sglang.launch_server"]
    assert {volume["name"] for volume in pod["volumes"]} == {"shm", "home", "cache", "tmp"}
    assert "SPECULATIVE_DISABLE_BATCH_THRESHOLD" not in env(engine(given))
    result = rendered(given)
    assert [manifest["kind"] for manifest in result.manifests] == ["Service", "Deployment"]
    assert (result.patch_digest, result.patch_config_map) == (None, None)


def test_gpus_are_requested_under_the_name_that_the_cluster_gives_them() -> None:
    resources = engine(service({"gpus.count": 4, "gpus.resourceName": "example.com/gpu"}))["resources"]
    assert resources == {"requests": {"example.com/gpu": "4"}, "limits": {"example.com/gpu": "4"}}
    assert "resources" not in patcher(service())


def test_the_threshold_comes_from_the_config_map_and_not_from_the_template() -> None:
    reference = {"configMapKeyRef": {"name": "llama-threshold", "key": "batchSize"}}
    assert env(engine(service()))["SPECULATIVE_DISABLE_BATCH_THRESHOLD"] == reference


def test_every_folder_that_the_environment_names_is_on_a_writable_volume() -> None:
    server = engine(service())
    writable = [pathlib.PurePath(m["mountPath"]) for m in server["volumeMounts"] if not m.get("readOnly")]
    named = [value for value in environment.DEFAULTS.values() if value.startswith("/")]
    assert len(named) > 8
    for folder in named:
        assert any(pathlib.PurePath(folder).is_relative_to(mount) for mount in writable), folder
    assert pathlib.PurePath("/tmp") in writable
    assert server["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ({}, {"emptyDir": {}}),
        ({"sizeLimit": "500Gi"}, {"emptyDir": {"sizeLimit": "500Gi"}}),
        ({"claimName": "weights"}, {"persistentVolumeClaim": {"claimName": "weights"}}),
    ],
)
def test_where_the_cache_lies(cache: dict[str, str], source: Manifest) -> None:
    volumes = {item.pop("name"): item for item in template(service({"model.cache": cache}))["spec"]["volumes"]}
    assert volumes["cache"] == source
    assert volumes["shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}


def test_probes_leave_a_slow_start_and_a_loaded_server_alone() -> None:
    server = engine(service({"engine.startupTimeoutSeconds": 2825}))
    startup, readiness, liveness = (server[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))
    assert startup["periodSeconds"] * startup["failureThreshold"] == 2830, "a 47 minute load fits"
    assert {probe["httpGet"]["path"] for probe in (startup, readiness, liveness)} == {"/health"}
    assert min(readiness["timeoutSeconds"], liveness["timeoutSeconds"]) > 25, "answers of 25 s count"
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 300
    assert env(server)["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false", "/health would generate otherwise"


@pytest.mark.parametrize(("grace", "delay"), [(60, "10"), (20, "5"), (3600, "10"), (3, None), (0, None)])
def test_draining_leaves_most_of_the_grace_period_to_the_server(grace: int, delay: str | None) -> None:
    server = engine(service({"podTemplate.terminationGracePeriodSeconds": grace}))
    expected = None if delay is None else {"preStop": {"exec": {"command": ["sleep", delay]}}}
    assert server.get("lifecycle") == expected


def test_restricted_by_default() -> None:
    pod = template(service())["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert (pod["enableServiceLinks"], pod["automountServiceAccountToken"]) == (False, False)
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


def test_security_contexts_of_the_user_replace_the_defaults_whole() -> None:
    user = {"runAsUser": 1000800000, "runAsGroup": 0}
    given = service({"podTemplate.securityContext": user, "podTemplate.containerSecurityContext": {"privileged": True}})
    assert template(given)["spec"]["securityContext"] == user
    assert engine(given)["securityContext"] == patcher(given)["securityContext"] == {"privileged": True}


def test_what_the_cluster_wants_of_the_pod_is_passed_on() -> None:
    pod = template(
        service(
            {
                "podTemplate.nodeSelector": {"pool": "a"},
                "podTemplate.imagePullSecrets": ["registry"],
                "podTemplate.serviceAccountName": "runner",
                "podTemplate.priorityClassName": "high",
                "podTemplate.runtimeClassName": "nvidia",
            }
        )
    )["spec"]
    assert pod["nodeSelector"] == {"pool": "a"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["serviceAccountName"], pod["priorityClassName"], pod["runtimeClassName"]) == (
        "runner",
        "high",
        "nvidia",
    )
    assert not {"nodeSelector", "runtimeClassName", "imagePullSecrets"} & set(template(service())["spec"])


def test_scraping_follows_the_port_and_can_be_redirected() -> None:
    metadata = template(service({"engine.port": 8000, "podTemplate.annotations": {"prometheus.io/path": "/other"}}))[
        "metadata"
    ]
    assert metadata["annotations"]["prometheus.io/scrape"] == "true"
    assert metadata["annotations"]["prometheus.io/port"] == "8000"
    assert metadata["annotations"]["prometheus.io/path"] == "/other"
    assert engine(service({"engine.port": 8000}))["ports"][0]["containerPort"] == 8000


def test_the_operators_own_labels_and_annotations_cant_be_taken() -> None:
    group = "serving.sglang-operator.io"
    metadata = template(
        service(
            {
                "podTemplate.labels": {f"{group}/service": "other", "team": "a"},
                "podTemplate.annotations": {f"{group}/patch": "other"},
            }
        )
    )["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"][f"{group}/service"] == "llama"
    assert metadata["annotations"][f"{group}/patch"] == archive().digest


def test_values_of_the_environment_stay_literal_and_empty_ones_carry_no_value() -> None:
    given = service({"engine.env": [{"name": "A", "value": "$(HOME) $$"}, {"name": "B", "value": ""}]})
    assert engine(given)["env"][-2:] == [{"name": "A", "value": "$$(HOME) $$$$"}, {"name": "B"}]


def test_the_user_may_move_folders_and_the_order_of_variables_is_kept() -> None:
    given = service({"engine.env": [{"name": "ZZ", "value": "1"}, {"name": "HF_HOME", "value": "/models/hub"}]})
    names = [item["name"] for item in engine(given)["env"]]
    assert names[-2:] == ["ZZ", "HF_HOME"]
    assert names.count("HF_HOME") == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ([{"name": "SPECULATIVE_DISABLE_BATCH_THRESHOLD", "value": "4"}], "use spec.speculation.disableThreshold"),
        ([{"name": "HF_TOKEN", "value": "hf_x"}], "spec.model.tokenSecretRef"),
        ([{"name": "HUGGING_FACE_HUB_TOKEN", "value": "hf_x"}], "spec.model.tokenSecretRef"),
        ([{"name": "POD_NAME", "value": "x"}], "the operator sets POD_NAME"),
        ([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}], "spec.engine.env[1]: A is there twice"),
    ],
)
def test_variables_that_are_the_operators_or_given_twice_are_refused(
    variables: list[dict[str, str]], said: str
) -> None:
    message = refusal({"engine.env": variables})
    assert said in message
    assert "hf_x" not in message


@pytest.mark.parametrize(
    ("volumes", "mounts", "said"),
    [
        ([{"name": "shm", "emptyDir": {}}], [], "shm is a volume of the operator's"),
        ([{"name": "specpatch", "emptyDir": {}}], [], "choose another name"),
        ([{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}], [], "volumes[1]: a is there twice"),
        ([{"name": "a", "emptyDir": {}}], [{"name": "a", "mountPath": "/dev/shm/"}], "spec.engine.sharedMemorySize"),
        ([{"name": "a", "emptyDir": {}}], [{"name": "a", "mountPath": "/opt/cache"}], "spec.model.cache"),
        ([{"name": "a", "emptyDir": {}}], [{"name": "a", "mountPath": "/opt/sglang-patched"}], "another mountPath"),
        ([], [{"name": "b", "mountPath": "/b"}], "b is no volume: declare it in spec.podTemplate.volumes"),
        (
            [{"name": "a", "emptyDir": {}}],
            [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/a/"}],
            "volumeMounts[1]: /a is there twice",
        ),
    ],
)
def test_volumes_that_clash_are_refused(volumes: list[Manifest], mounts: list[Manifest], said: str) -> None:
    assert said in refusal({"podTemplate.volumes": volumes, "podTemplate.volumeMounts": mounts})


@pytest.mark.parametrize(("size", "limit"), [("16Gi", "16Gi"), ("16Gi", "1024Mi"), ("2Ti", "2T")])
def test_shared_memory_must_fit_into_the_memory_limit(size: str, limit: str) -> None:
    message = refusal({"engine.sharedMemorySize": size, "engine.resources": {"memoryLimit": limit}})
    assert size in message
    assert limit in message
    assert "spec.engine.sharedMemorySize" in message


def test_a_limit_above_shared_memory_is_fine() -> None:
    rendered(service({"engine.sharedMemorySize": "16G", "engine.resources": {"memoryLimit": "16Gi"}}))


def test_the_deployment_holds_the_template_that_the_revision_speaks_of() -> None:
    result = rendered(service())
    deployment = only(result, "Deployment")
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["serving.sglang-operator.io/revision"] == result.revision

"""What the API server stores and serves: defaults, pruning, scale, columns, status."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml
from inferenceservice import API, DRAFTING, at, collection, merged, service

from apiserver import ApiServer, Refused
from localcluster.eventually import eventually
from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import (
    Condition,
    InferenceServiceSpec,
    InferenceServiceStatus,
    ThresholdSource,
    ThresholdStatus,
    parse_spec,
)

Manifest = dict[str, Any]
SAMPLES = sorted((pathlib.Path(__file__).parents[2] / "manifests/samples").glob("*.yaml"))
NOW = "2026-11-30T12:00:00Z"


def store(server: ApiServer, namespace: str, changes: Manifest | None = None, **params: str) -> Manifest:
    return server.create(collection(namespace), service(changes), **params)


def condition(kind: str, status: str = "False", reason: str = "Starting") -> Condition:
    return Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "The server is loading.",
            "lastTransitionTime": NOW,
            "observedGeneration": 1,
        }
    )


STATUS = InferenceServiceStatus(
    observed_generation=1,
    replicas=2,
    ready_replicas=1,
    updated_replicas=2,
    selector="app.kubernetes.io/instance=case",
    revision="0123abcd",
    engine_release="0.5.23",
    patch_digest="f" * 64,
    url="http://case.default.svc:30000",
    threshold=ThresholdStatus(
        batch_size=32, source=ThresholdSource.SPEC, decided_at=NOW, message="The value to start from.", synced_pods=1
    ),
    conditions=[condition("Ready"), condition("Serving", "True", "Serving")],
)


def write_status(server: ApiServer, namespace: str, status: Manifest) -> Manifest:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "case"},
        "status": status,
    }
    path = f"{collection(namespace)}/case/status"
    return server.apply(path, body, manager=names.FIELD_MANAGER_STATUS, fieldValidation="Strict")


def test_defaults_are_stored(crd_server: ApiServer, namespace: str) -> None:
    spec = store(crd_server, namespace)["spec"]
    assert crd_server.get(f"{collection(namespace)}/case")["spec"] == spec
    assert spec == {
        "model": {"uri": "hf://example/model"},
        "replicas": 1,
        "gpus": {"count": 8, "architecture": "Blackwell", "resourceName": "nvidia.com/gpu"},
        "engine": {
            "image": "example/sglang:v0.5.23",
            "imagePullPolicy": "IfNotPresent",
            "port": 30000,
            "startupTimeoutSeconds": 3600,
            "sharedMemorySize": "16Gi",
        },
        "speculation": {
            "algorithm": "None",
            "numSteps": 3,
            "topK": 1,
            "disableThreshold": {"mode": "Auto", "min": 1, "max": 512},
            "offPath": "Auto",
        },
        "rollout": {"strategy": "Recreate"},
        "podTemplate": {"terminationGracePeriodSeconds": 60},
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"speculation": DRAFTING},
        at("speculation", {"disableThreshold": {"mode": "Fixed", "batchSize": 4}}),
        at("podTemplate", {"labels": {"a": ""}}),
        at("model", {"tokenSecretRef": {"name": "hub"}, "cache": {"sizeLimit": "9Gi"}}),
        at("engine", {"env": [{"name": "A"}], "resources": {"cpu": "8"}}),
        at("engine", {"apiKeySecretRef": {"name": "keys", "key": "clients"}}),
        at("speculation", {"offPath": "ZeroStep"}),
        at("rollout", {"progressDeadlineSeconds": 900}),
    ],
)
def test_the_operators_own_defaults_are_the_same(crd_server: ApiServer, namespace: str, changes: Manifest) -> None:
    stored = store(crd_server, namespace, changes)["spec"]
    assert parse_spec(stored) == parse_spec(service(changes)["spec"])


def test_defaults_fill_only_what_is_missing(crd_server: ApiServer, namespace: str) -> None:
    changes = merged({"speculation": DRAFTING}, at("speculation.disableThreshold", {"max": 64, "mode": None}))
    speculation = store(crd_server, namespace, changes)["spec"]["speculation"]
    assert speculation == {
        **DRAFTING,
        "numSteps": 3,
        "topK": 1,
        "disableThreshold": {"mode": "Auto", "min": 1, "max": 64},
        "offPath": "Auto",
    }


def test_unknown_fields_are_dropped_for_clients_that_do_not_validate(crd_server: ApiServer, namespace: str) -> None:
    changes = merged(at("speculation.disableTreshold", 8), at("podTemplate.tolerations.0", {"key": "a", "efect": "x"}))
    spec = store(crd_server, namespace, changes, fieldValidation="Ignore")["spec"]
    assert "disableTreshold" not in spec["speculation"]
    assert spec["speculation"]["disableThreshold"] == {"mode": "Auto", "min": 1, "max": 512}
    assert spec["podTemplate"]["tolerations"] == [{"key": "a"}]


def test_clients_that_only_warn_hear_of_unknown_fields(crd_server: ApiServer, namespace: str) -> None:
    response = crd_server.request(
        "POST", collection(namespace), service(at("disableTreshold", 8)), params={"fieldValidation": "Warn"}
    )
    assert 'unknown field "spec.disableTreshold"' in response.headers["Warning"].replace("\\", "")


def test_parts_of_kubernetes_are_kept_as_they_are(crd_server: ApiServer, namespace: str) -> None:
    template = {
        "volumes": [{"name": "m", "csi": {"driver": "d.example", "volumeAttributes": {"a": "b"}}}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "x": {}}]}},
        "securityContext": {"runAsNonRoot": False, "sysctls": [{"name": "n", "value": "v"}]},
        "containerSecurityContext": {"capabilities": {"add": ["SYS_NICE"]}},
    }
    stored = store(crd_server, namespace, {"podTemplate": template})["spec"]["podTemplate"]
    assert {key: stored[key] for key in template} == template
    parsed = parse_spec(crd_server.get(f"{collection(namespace)}/case")["spec"]).pod_template
    assert [volume.manifest() for volume in parsed.volumes] == template["volumes"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_accepted(crd_server: ApiServer, namespace: str, path: pathlib.Path) -> None:
    sample = yaml.safe_load(path.read_text(encoding="utf-8"))
    stored = crd_server.apply(f"{collection(namespace)}/{path.stem}", sample, fieldValidation="Strict")
    assert parse_spec(stored["spec"]) == InferenceServiceSpec.model_validate(sample["spec"])


def test_every_field_of_the_status_is_stored(crd_server: ApiServer, namespace: str) -> None:
    store(crd_server, namespace)
    written = STATUS.manifest()
    assert set(written) == {field.alias for field in InferenceServiceStatus.model_fields.values()}
    write_status(crd_server, namespace, written)
    stored = crd_server.get(f"{collection(namespace)}/case")
    assert stored["status"] == written
    assert stored["metadata"]["generation"] == 1
    assert InferenceServiceStatus.model_validate(stored["status"]) == STATUS


def test_conditions_of_another_manager_stay(crd_server: ApiServer, namespace: str) -> None:
    store(crd_server, namespace)
    write_status(crd_server, namespace, STATUS.manifest())
    path = f"{collection(namespace)}/case/status"
    foreign = condition("example.com/Audited", "True", "Seen").manifest()
    body = {**service(), "status": {"conditions": [foreign]}}
    crd_server.apply(path, {key: body[key] for key in ("apiVersion", "kind", "metadata", "status")}, manager="auditor")
    ready = condition("Ready", "True", "Available").manifest()
    stored = write_status(crd_server, namespace, {**STATUS.manifest(), "conditions": [ready]})["status"]
    assert stored["conditions"] == [ready, foreign]


def test_writing_the_same_status_again_stores_nothing(crd_server: ApiServer, namespace: str) -> None:
    store(crd_server, namespace)
    first = write_status(crd_server, namespace, STATUS.manifest())
    second = write_status(crd_server, namespace, STATUS.manifest())
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


def test_a_status_write_changes_no_spec_and_a_spec_write_no_status(crd_server: ApiServer, namespace: str) -> None:
    stored = store(crd_server, namespace)
    assert "status" not in stored
    path = f"{collection(namespace)}/case"
    stored["status"] = STATUS.manifest()
    assert "status" not in crd_server.request("PUT", path, stored).json()
    stored["spec"]["replicas"] = 5
    assert crd_server.request("PUT", f"{path}/status", stored).json()["spec"]["replicas"] == 1


def test_an_incomplete_condition_is_refused(crd_server: ApiServer, namespace: str) -> None:
    store(crd_server, namespace)
    broken = {**STATUS.manifest(), "conditions": [{"type": "Ready", "status": "Maybe"}]}
    with pytest.raises(Refused) as refusal:
        write_status(crd_server, namespace, broken)
    fields = {cause["field"] for cause in refusal.value.causes}
    assert {f"status.conditions[0].{name}" for name in ("status", "reason", "message")} <= fields


def test_scale(crd_server: ApiServer, namespace: str) -> None:
    store(crd_server, namespace)
    write_status(crd_server, namespace, STATUS.manifest())
    path = f"{collection(namespace)}/case/scale"
    scale = crd_server.get(path)
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 2, "selector": "app.kubernetes.io/instance=case"}
    scale["spec"]["replicas"] = 3
    crd_server.request("PUT", path, scale)
    assert crd_server.get(f"{collection(namespace)}/case")["spec"]["replicas"] == 3
    scale = crd_server.get(path)
    scale["spec"]["replicas"] = 999
    with pytest.raises(Refused, match="less than or equal to 256"):
        crd_server.request("PUT", path, scale)


def test_columns(crd_server: ApiServer, namespace: str) -> None:
    store(crd_server, namespace, merged({"speculation": DRAFTING}, at("replicas", 2)))

    def cells() -> dict[str, object]:
        table = crd_server.table(collection(namespace))
        columns = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(columns, table["rows"][0]["cells"], strict=True))

    before = cells()
    assert before["Ready"] is None
    assert before["Threshold"] is None
    write_status(crd_server, namespace, STATUS.manifest())
    after = cells()
    assert after.pop("Age")
    assert after == {
        "Name": "case",
        "Model": "hf://example/model",
        "GPUs": 8,
        "Replicas": 2,
        "Threshold": 32,
        "Ready": "False",
        "Reason": "Starting",
        "Algorithm": "EAGLE3",
        "Mode": "Auto",
        "URL": "http://case.default.svc:30000",
        "Release": "0.5.23",
    }
    definitions = crd_server.table(collection(namespace))["columnDefinitions"]
    wide = [column["name"] for column in definitions if column["priority"] == 1]
    assert wide == ["Algorithm", "Mode", "URL", "Release"]


def test_short_name_and_category(crd_server: ApiServer) -> None:
    [resource] = [item for item in crd_server.get(API)["resources"] if item["name"] == names.PLURAL]
    assert (resource["kind"], resource["singularName"]) == (names.KIND, names.SINGULAR)
    assert (resource["shortNames"], resource["categories"]) == ([names.SHORT_NAME], [names.CATEGORY])


def test_explain_has_something_to_say(crd_server: ApiServer) -> None:
    def speculation() -> Manifest:
        schemas = crd_server.get(f"/openapi/v3{API}")["components"]["schemas"]
        resources = [schema for name, schema in schemas.items() if name.endswith(f".{names.KIND}")]
        found: Manifest = resources[0]["properties"]["spec"]["properties"]["speculation"]
        return found

    schema = eventually(speculation, within_seconds=30, what="the resource's schema is published")
    threshold = schema["properties"]["disableThreshold"]
    assert "Changed in running servers, without a restart" in threshold["description"]
    assert "Default: 512" in threshold["properties"]["max"]["description"]

"""What the API server refuses at apply, each with a sentence that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from inferenceservice import DRAFTING, at, collection, merged, service

from apiserver import ApiServer, Refused
from sglang_operator.api.rules import CEL_RULES

Manifest = dict[str, Any]

LABEL_VALUE = "must be a label value"
SIZE = "must be a size above zero with its unit, such as 16Gi or 500M"
THRESHOLD = "speculation.disableThreshold"
OWN_LABELS = "labels must not hold keys that the operator sets itself: "


def drafting(path: str, value: object) -> Manifest:
    return merged({"speculation": DRAFTING}, at(path, value))


# changes to a minimal spec | path of the field below `spec` | part of the sentence
REFUSED: dict[str, tuple[Manifest, str, str]] = {
    "unknown algorithm": (
        at("speculation.algorithm", "EAGLE2"),
        "speculation.algorithm",
        'supported values: "EAGLE3", "EAGLE", "None"',
    ),
    "unknown mode": (at(f"{THRESHOLD}.mode", "auto"), f"{THRESHOLD}.mode", 'supported values: "Auto", "Fixed"'),
    "unknown architecture": (
        at("gpus.architecture", "Hopper"),
        "gpus.architecture",
        'supported values: "Blackwell", "Any"',
    ),
    "unknown strategy": (at("rollout.strategy", "BlueGreen"), "rollout.strategy", '"Recreate", "RollingUpdate"'),
    "unknown pull policy": (at("engine.imagePullPolicy", "Sometimes"), "engine.imagePullPolicy", "Unsupported value"),
    "no GPUs": (at("gpus.count", 0), "gpus.count", "should be greater than or equal to 1"),
    "negative GPUs": (at("gpus.count", -8), "gpus.count", "should be greater than or equal to 1"),
    "more GPUs than a node has": (at("gpus.count", 9), "gpus.count", "should be less than or equal to 8"),
    "half a GPU": (at("gpus.count", 0.5), "gpus.count", "must be of type int32"),
    "GPUs as text": (at("gpus.count", "8"), "gpus.count", "must be of type integer"),
    "GPUs as a switch": (at("gpus.count", True), "gpus.count", "must be of type int32"),
    "a GPU resource without a domain": (at("gpus.resourceName", "gpu"), "gpus.resourceName", "such as nvidia.com/gpu"),
    "too many replicas": (at("replicas", 257), "replicas", "should be less than or equal to 256"),
    "negative replicas": (at("replicas", -1), "replicas", "should be greater than or equal to 0"),
    "a privileged port": (at("engine.port", 80), "engine.port", "should be greater than or equal to 1024"),
    "no image": (at("engine.image", ""), "engine.image", "must be an image such as"),
    "an address as image": (at("engine.image", "https://x.io/a:b"), "engine.image", "must be an image such as"),
    "a NUL in a flag": (at("engine.args.0", "a\0b"), "engine.args[0]", "must be text without NUL characters"),
    "an endless flag": (at("engine.args.0", "x" * 4097), "engine.args[0]", "may not be more than 4096"),
    "too many flags": (at("engine.args", ["-"] * 257), "engine.args", "must have at most 256 items"),
    "a switch in the environment": (
        at("engine.env.0", {"name": "A", "value": True}),
        "engine.env[0].value",
        "must be of type string",
    ),
    "a variable's name": (at("engine.env.0.name", "1A"), "engine.env[0].name", "the name of an environment variable"),
    "a variable given twice": (
        at("engine.env", [{"name": "A"}, {"name": "A"}]),
        "engine.env[1]",
        'Duplicate value: {"name":"A"}',
    ),
    "an API key without its place in the Secret": (
        at("engine.apiKeySecretRef", {"name": "keys"}),
        "engine.apiKeySecretRef.key",
        "Required value",
    ),
    "an admin key without an API key": (
        at("engine.adminApiKeySecretRef", {"name": "keys", "key": "admin"}),
        "engine.apiKeySecretRef",
        "apiKeySecretRef must be set together with adminApiKeySecretRef",
    ),
    "unknown off path": (
        at("speculation.offPath", "decode"),
        "speculation.offPath",
        'supported values: "Auto", "Decode", "ZeroStep"',
    ),
    "Fixed without batchSize": (
        at(f"{THRESHOLD}.mode", "Fixed"),
        f"{THRESHOLD}.batchSize",
        "batchSize must be set when mode is Fixed",
    ),
    "min above max": (at(THRESHOLD, {"min": 65, "max": 64}), f"{THRESHOLD}.min", "min must not be above max"),
    "min that would mean always": (at(f"{THRESHOLD}.min", 0), f"{THRESHOLD}.min", "greater than or equal to 1"),
    "start below min": (
        at(THRESHOLD, {"batchSize": 3, "min": 4}),
        f"{THRESHOLD}.batchSize",
        "batchSize must lie between min and max when mode is Auto",
    ),
    "start above max": (at(f"{THRESHOLD}.batchSize", 513), f"{THRESHOLD}.batchSize", "between min and max"),
    "negative threshold": (at(f"{THRESHOLD}.batchSize", -1), f"{THRESHOLD}.batchSize", "greater than or equal to 0"),
    "an absurd threshold": (
        at(f"{THRESHOLD}.batchSize", 10**9),
        f"{THRESHOLD}.batchSize",
        "less than or equal to 1000000",
    ),
    "EAGLE3 without a draft model": (
        at("speculation.algorithm", "EAGLE3"),
        "speculation.draftModel",
        "draftModel must be set when algorithm is EAGLE or EAGLE3",
    ),
    "EAGLE without a draft model": (
        at("speculation.algorithm", "EAGLE"),
        "speculation.draftModel",
        "draftModel must be set when algorithm is EAGLE or EAGLE3",
    ),
    "a draft tree": (drafting("speculation.topK", 4), "speculation.topK", "topK must be 1: SGLang can't switch"),
    "draft tokens that contradict steps": (
        drafting("speculation.numDraftTokens", 8),
        "speculation.numDraftTokens",
        "numDraftTokens must be numSteps + 1 (topK is 1), or left unset",
    ),
    "a size with a wrong unit": (at("engine.sharedMemorySize", "16gb"), "engine.sharedMemorySize", SIZE),
    "a size without a unit": (at("engine.sharedMemorySize", "16"), "engine.sharedMemorySize", SIZE),
    "a size as a number": (at("engine.sharedMemorySize", 16), "engine.sharedMemorySize", "must be of type string"),
    "a negative size": (at("engine.resources.memory", "-1Gi"), "engine.resources.memory", SIZE),
    "no cache at all": (at("model.cache.sizeLimit", "0Gi"), "model.cache.sizeLimit", SIZE),
    "CPUs in bytes": (at("engine.resources.cpu", "8Gi"), "engine.resources.cpu", "must be a number of CPUs above zero"),
    "too little shared memory": (
        at("engine.sharedMemorySize", "63Mi"),
        "engine.sharedMemorySize",
        "sharedMemorySize must be at least 64Mi: NCCL fails with less",
    ),
    "shared memory above the limit": (
        at("engine", {"sharedMemorySize": "16Gi", "resources": {"memoryLimit": "17179869k"}}),
        "engine.resources.memoryLimit",
        "resources.memoryLimit must be above sharedMemorySize",
    ),
    "the default of shared memory above the limit": (
        at("engine.resources.memoryLimit", "8Gi"),
        "engine.resources.memoryLimit",
        "resources.memoryLimit must be above sharedMemorySize",
    ),
    "request above the limit": (
        at("engine.resources", {"memory": "65Gi", "memoryLimit": "64Gi"}),
        "engine.resources.memory",
        "memory must not be above memoryLimit",
    ),
    "two caches": (
        at("model.cache", {"claimName": "weights", "sizeLimit": "9Gi"}),
        "model.cache.sizeLimit",
        "sizeLimit must not be set together with claimName",
    ),
    "a model without its organisation": (at("model.uri", "hf://llama"), "model.uri", "must be hf://organisation/name"),
    "a model with spaces": (at("model.uri", "Org/Ünïcode Model_v1.0"), "model.uri", "must be hf://organisation/name"),
    "a relative path": (at("model.uri", "models/target"), "model.uri", "or an absolute path inside the pod"),
    "a draft model that is none": (
        at("speculation", {"algorithm": "EAGLE3", "draftModel": {"uri": "draft"}}),
        "speculation.draftModel.uri",
        "must be hf://organisation/name",
    ),
    "a name on two lines": (at("model.servedName", "a\nb"), "model.servedName", "must be a name on one line"),
    "a Secret's name": (at("model.tokenSecretRef.name", "My_Secret"), "model.tokenSecretRef.name", "Kubernetes object"),
    "a product label": (at("gpus.product.0", "RTX PRO 6000"), "gpus.product[0]", LABEL_VALUE),
    "a product given twice": (at("gpus.product", ["A", "A"]), "gpus.product[1]", 'Duplicate value: "A"'),
    "a label's value": (at("podTemplate.labels", {"team": "-x"}), "podTemplate.labels[team]", LABEL_VALUE),
    "a label's value with a space": (
        at("podTemplate.nodeSelector", {"zone": "a b"}),
        "podTemplate.nodeSelector[zone]",
        LABEL_VALUE,
    ),
    "a label's value of 64 characters": (
        at("podTemplate.labels", {"team": "x" * 64}),
        "podTemplate.labels.team",
        "may not be more than 63",
    ),
    "a label's key": (
        at("podTemplate.labels", {"ok": "x", "not ok": "x"}),
        "podTemplate.labels",
        "each key must be a label key: a name of up to 63 characters, after a DNS name and '/' if any, "
        "such as example.com/team, not not ok",
    ),
    "a label that selects": (
        at("podTemplate.labels", {"app.kubernetes.io/name": "x"}),
        "podTemplate.labels",
        f"{OWN_LABELS}app.kubernetes.io/name",
    ),
    "a label of the operator's": (
        at("podTemplate.labels", {"serving.sglang-operator.io/service": "x"}),
        "podTemplate.labels",
        f"{OWN_LABELS}serving.sglang-operator.io/service",
    ),
    "an annotation of the operator's": (
        at("podTemplate.annotations", {"serving.sglang-operator.io/patch": "x"}),
        "podTemplate.annotations",
        "annotations must not hold keys that the operator sets itself: serving.sglang-operator.io/patch",
    ),
    "a taint's effect": (
        at("podTemplate.tolerations.0.effect", "NoRun"),
        "podTemplate.tolerations[0].effect",
        "Unsupported",
    ),
    "a volume without a name": (
        at("podTemplate.volumes.0.emptyDir", {}),
        "podTemplate.volumes[0].name",
        "Required value",
    ),
    "a user as text": (
        at("podTemplate.securityContext.runAsUser", "root"),
        "podTemplate.securityContext.runAsUser",
        "integer",
    ),
    "no model": (at("model", {"uri": None}), "model.uri", "Required value"),
    "a null for a part": (at("gpus", None), "gpus", "Required value"),
}

ACCEPTED: dict[str, Manifest] = {
    "nothing more": {},
    "one GPU": at("gpus.count", 1),
    "a whole number with a point": at("gpus.count", 4.0),
    "no replicas": at("replicas", 0),
    "always draft": at(THRESHOLD, {"mode": "Fixed", "batchSize": 0}),
    "never draft": at(THRESHOLD, {"mode": "Fixed", "batchSize": 1}),
    "fixed outside of the bounds of Auto": at(THRESHOLD, {"mode": "Fixed", "batchSize": 999}),
    "min equal to max": at(THRESHOLD, {"min": 8, "max": 8}),
    "a null for an unset field": at(f"{THRESHOLD}.batchSize", None),
    "EAGLE3": {"speculation": DRAFTING},
    "steps and the tokens that follow": merged(
        {"speculation": DRAFTING}, at("speculation", {"numSteps": 5, "numDraftTokens": 6})
    ),
    "sizes": at("engine", {"sharedMemorySize": "0.5Ti", "resources": {"memory": "1T", "memoryLimit": "1024Gi"}}),
    "CPUs": at("engine.resources.cpu", "1500m"),
    "an empty label": at("podTemplate", {"labels": {"team": ""}, "nodeSelector": {"node-role.kubernetes.io/gpu": ""}}),
    "free text in annotations and flags": at("engine.args", ['{"a": "b c"}', "$(HOME)", "é\n\\", "{{ x }}"]),
    "a registry with a port and a digest": at("engine.image", f"r.example:5000/a/b:c@sha256:{'0' * 64}"),
    "a tag of digits": at("engine.image", "example/sglang:20250916"),
    "volumes": at(
        "podTemplate",
        {
            "volumes": [{"name": "m", "hostPath": {"path": "/m", "type": "Directory"}}],
            "volumeMounts": [{"name": "m", "mountPath": "/models", "readOnly": True}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "securityContext": {"runAsUser": 0, "somethingNew": {"a": 1}},
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
    ),
}


def create(server: ApiServer, manifest: Manifest) -> Manifest:
    # A dry run goes through all of defaulting and validation and stores nothing.
    return server.create(collection("default"), manifest, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_sentence_that_names_the_field(crd_server: ApiServer, case: str) -> None:
    changes, path, sentence = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        create(crd_server, service(changes))
    assert refusal.value.status == 422
    about_the_field = [cause["message"] for cause in refusal.value.causes if cause["field"] == f"spec.{path}"]
    assert any(sentence in message for message in about_the_field), refusal.value.causes


def test_every_rule_is_broken_by_some_case() -> None:
    sentences = [sentence for _, _, sentence in REFUSED.values()]
    untried = [
        rule.message
        for rule in CEL_RULES
        if rule.path and not any(text in rule.message or text.startswith(rule.message) for text in sentences)
    ]
    assert untried == []


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(crd_server: ApiServer, case: str) -> None:
    create(crd_server, service(ACCEPTED[case]))


@pytest.mark.parametrize("name", ["a.b", "1a", "a" * 64, "a" * 253])
def test_names_that_children_could_not_carry_are_refused(crd_server: ApiServer, name: str) -> None:
    with pytest.raises(Refused) as refusal:
        create(crd_server, service(name=name))
    [cause] = refusal.value.causes
    assert cause["field"] == "metadata.name"
    assert "metadata.name must have at most 63 characters of a-z, 0-9 and '-'" in cause["message"]


@pytest.mark.parametrize("name", ["a", "a" * 40, "a" * 52, "a" * 63, "a-1"])
def test_names_that_fit_are_accepted(crd_server: ApiServer, name: str) -> None:
    create(crd_server, service(name=name))


def test_each_problem_is_told_at_once(crd_server: ApiServer) -> None:
    changes = merged(at("speculation", {"algorithm": "EAGLE3", "topK": 4}), at("engine.sharedMemorySize", "16gb"))
    with pytest.raises(Refused) as refusal:
        create(crd_server, service(changes))
    fields = {cause["field"] for cause in refusal.value.causes}
    assert fields == {"spec.speculation.draftModel", "spec.speculation.topK", "spec.engine.sharedMemorySize"}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (at("disableTreshold", 8), "spec.disableTreshold"),
        (at("speculation.disableTreshold", {"batchSize": 8}), "spec.speculation.disableTreshold"),
        (at("speculation.batchSize", 8), "spec.speculation.batchSize"),
        (at("engine.serverargs", ["--x"]), "spec.engine.serverargs"),
        (at("engine.shared_memory_size", "8Gi"), "spec.engine.shared_memory_size"),
        (at("podTemplate.tolerations.0.efect", "NoSchedule"), "spec.podTemplate.tolerations[0].efect"),
        (
            at("podTemplate.volumeMounts.0", {"name": "a", "mountPath": "/a", "readonly": True}),
            "spec.podTemplate.volumeMounts[0].readonly",
        ),
        (at("podTemplate.affinity.nodeAffinty", {}), "spec.podTemplate.affinity.nodeAffinty"),
    ],
)
def test_misspelt_fields_are_errors_for_clients_that_validate(
    crd_server: ApiServer, changes: Manifest, path: str
) -> None:
    with pytest.raises(Refused, match="strict decoding error") as refusal:
        create(crd_server, service(changes))
    assert f'unknown field "{path}"' in str(refusal.value)

"""Reading a stored spec: sentences for what is wrong, and what an operator that is rolled back must bear."""

from __future__ import annotations

from typing import Any

import pytest
from inferenceservice import DRAFTING, MINIMAL_SPEC, at, merged

from sglang_operator.api.v1alpha1 import (
    Algorithm,
    EngineSpec,
    InferenceServiceSpec,
    ThresholdMode,
    parse_spec,
)
from sglang_operator.errors import SpecError


def parsed(changes: dict[str, Any]) -> InferenceServiceSpec:
    return parse_spec(merged(MINIMAL_SPEC, changes))


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as error:
        parsed(changes)
    assert error.value.reason == "InvalidSpec"
    return str(error.value)


def test_the_least_there_is_to_say() -> None:
    spec = parsed({})
    assert (spec.replicas, spec.gpus.count, spec.engine.port) == (1, 8, 30_000)
    assert spec.speculation.algorithm is Algorithm.NONE
    assert spec.speculation.disable_threshold.mode is ThresholdMode.AUTO
    assert spec.speculation.disable_threshold.batch_size is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (at("gpus.count", 9), "spec.gpus.count: must be less than or equal to 8"),
        (at("gpus.count", "many"), "spec.gpus.count: must be a valid integer"),
        (at("speculation.algorithm", "EAGLE2"), "spec.speculation.algorithm: must be 'EAGLE3', 'EAGLE' or 'None'"),
        (
            at("engine.sharedMemorySize", "16gb"),
            "spec.engine.sharedMemorySize: must be a size above zero with its unit",
        ),
        (at("engine.sharedMemorySize", "1" * 33), "spec.engine.sharedMemorySize: must have at most 32 characters"),
        (at("engine.env.0", {"name": "1A"}), "spec.engine.env[0].name: must be the name of an environment variable"),
        (at("engine.env.0", {"name": "A", "value": True}), "spec.engine.env[0].value: must be a valid string"),
        (at("podTemplate.labels", {"team": "-"}), "spec.podTemplate.labels.team: must be a label value"),
        (at("podTemplate.labels", {"a b": "x"}), "spec.podTemplate.labels[a b] (the key): must be a label key"),
        (at("model", {"uri": None}), "spec.model.uri: must be a valid string"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(changes: dict[str, Any], sentence: str) -> None:
    text = refusal(changes)
    assert text.startswith("Correct the resource and apply it again: spec.")
    assert sentence in text
    assert text.endswith(".")


def test_missing_parts_are_named() -> None:
    with pytest.raises(SpecError) as error:
        parse_spec({"model": {}, "engine": {"image": "a"}})
    assert str(error.value) == (
        "Correct the resource and apply it again: spec.model.uri: must be set; spec.gpus: must be set."
    )


def test_many_problems_are_counted() -> None:
    text = refusal(at("engine.env", [{"name": f"{number}"} for number in range(12)]))
    assert text.count("must be the name of an environment variable") == 5
    assert text.endswith("; and 7 more.")


@pytest.mark.parametrize("spec", [None, [], "spec", 3])
def test_a_spec_that_is_no_object_is_refused(spec: object) -> None:
    with pytest.raises(SpecError, match="Correct the resource"):
        parse_spec(spec)


def test_fields_of_a_newer_crd_are_passed_over() -> None:
    spec = merged(
        MINIMAL_SPEC,
        {"new": {"a": 1}, "speculation": {**DRAFTING, "newer": 1}, "engine": {"env": [{"name": "A", "x": 1}]}},
    )
    before = repr(spec)
    read = parse_spec(spec)
    assert read.speculation.algorithm is Algorithm.EAGLE3
    assert [variable.name for variable in read.engine.env] == ["A"]
    assert repr(spec) == before


def test_unknown_fields_do_not_hide_what_is_wrong() -> None:
    text = refusal({"new": 1, "gpus": {"count": 0}})
    assert "spec.gpus.count: must be greater than or equal to 1" in text
    assert "new" not in text


def test_models_made_in_code_take_no_unknown_field() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        EngineSpec.model_validate({"image": "a", "shared_memory": "8Gi"})


def test_parts_of_kubernetes_are_kept() -> None:
    template = {
        "volumes": [{"name": "m", "hostPath": {"path": "/m"}, "unknownYet": None}],
        "tolerations": [{"key": "a", "tolerationSeconds": 3}],
        "securityContext": {"runAsUser": 0},
    }
    read = parsed({"podTemplate": template}).pod_template
    assert [volume.manifest() for volume in read.volumes] == template["volumes"]
    assert [toleration.manifest() for toleration in read.tolerations] == template["tolerations"]
    assert read.security_context is not None
    assert read.security_context.manifest() == template["securityContext"]


def test_a_manifest_leaves_out_what_is_unset() -> None:
    manifest = parsed({"speculation": DRAFTING}).manifest()
    assert manifest["speculation"]["draftModel"] == {"uri": "hf://example/draft"}
    assert "batchSize" not in manifest["speculation"]["disableThreshold"]
    assert parse_spec(manifest) == parsed({"speculation": DRAFTING})

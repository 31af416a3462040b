"""Node affinity: what the service needs and what the user wants must both hold."""

from __future__ import annotations

from typing import Any

import pytest
from render_support import service, template

from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import SpecError

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EIGHT = {"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["7"]}
BLACKWELL = {"key": "nvidia.com/gpu.compute.major", "operator": "In", "values": ["10", "12"]}
ZONE_A = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
ZONE_B = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}


def affinity(changes: dict[str, Any]) -> Manifest:
    found: Manifest = template(service(changes))["spec"]["affinity"]
    return found


def terms(changes: dict[str, Any]) -> list[Manifest]:
    found: list[Manifest] = affinity(changes)["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def with_terms(*given: Any) -> dict[str, Any]:
    return {"podTemplate.affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(given)}}}}


def test_nodes_of_eight_blackwell_gpus_even_for_a_small_replica() -> None:
    assert terms({}) == terms({"gpus.count": 1}) == [{"matchExpressions": [EIGHT, BLACKWELL]}]


def test_any_architecture_still_wants_eight_gpus() -> None:
    assert terms({"gpus.architecture": "Any"}) == [{"matchExpressions": [EIGHT]}]


def test_products_narrow_the_nodes() -> None:
    wanted = ["NVIDIA-B200", "NVIDIA-B300"]
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": wanted}
    assert terms({"gpus.product": wanted}) == [{"matchExpressions": [EIGHT, BLACKWELL, product]}]


def test_every_alternative_of_the_user_is_narrowed() -> None:
    assert terms(
        with_terms({"matchExpressions": [ZONE_A]}, {"matchExpressions": [ZONE_B], "matchFields": [FIELD]})
    ) == [
        {"matchExpressions": [EIGHT, BLACKWELL, ZONE_A]},
        {"matchExpressions": [EIGHT, BLACKWELL, ZONE_B], "matchFields": [FIELD]},
    ]


def test_a_term_of_fields_alone_gets_our_expressions() -> None:
    assert terms(with_terms({"matchFields": [FIELD]})) == [
        {"matchFields": [FIELD], "matchExpressions": [EIGHT, BLACKWELL]}
    ]


def test_an_empty_alternative_matches_nothing_and_is_not_widened() -> None:
    assert terms(with_terms({}, {"matchExpressions": [ZONE_A]})) == [{"matchExpressions": [EIGHT, BLACKWELL, ZONE_A]}]


@pytest.mark.parametrize("given", [(), ({},), ({"matchExpressions": []}, {})])
def test_terms_that_match_no_node_are_refused(given: tuple[Manifest, ...]) -> None:
    with pytest.raises(SpecError, match="matches no node"):
        terms(with_terms(*given))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"nodeAffinity": "a"}, "spec.podTemplate.affinity.nodeAffinity must be an object"),
        ({"nodeAffinity": {REQUIRED: [1]}}, f"{REQUIRED} must be an object"),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ["a"]}}}, r"nodeSelectorTerms\[0\] must be an object"),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": "a"}]}}}, "must be a list"),
    ],
)
def test_malformed_affinity_is_refused_with_its_path(given: Manifest, field: str) -> None:
    with pytest.raises(SpecError, match=field) as refused:
        affinity({"podTemplate.affinity": given})
    assert refused.value.reason == "InvalidSpec"


def test_preferences_and_pod_affinity_are_kept() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [ZONE_A]}}]
    apart = {REQUIRED: [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}
    given = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
        "podAntiAffinity": apart,
    }
    assert affinity({"podTemplate.affinity": given}) == {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [EIGHT, BLACKWELL]}]},
        },
        "podAntiAffinity": apart,
    }


def test_the_gpu_taint_is_tolerated_once() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    other = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    tolerations = template(service({"podTemplate.tolerations": [other, gpu]}))["spec"]["tolerations"]
    assert tolerations == [gpu, other]

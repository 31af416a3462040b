"""When an object need not be written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from render_support import PROPERTY, only, rendered, service

from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.render import quantity
from sglang_operator.render.compare import covers

FULL: dict[str, Any] = {
    "engine.resources": {"cpu": "1.5", "memory": "2048Gi", "memoryLimit": "3Ti"},
    "engine.env": [{"name": "A"}, {"name": "B", "value": "1"}],
    "podTemplate.imagePullSecrets": ["one", "two"],
    "podTemplate.tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}],
    "podTemplate.volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "m", "readOnly": False}}],
    "podTemplate.volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": False}],
}


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all values that hold no others and say something."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    elif value not in (None, "", False):
        yield path


def changed(manifest: Manifest, path: tuple[str | int, ...]) -> Manifest:
    result = copy.deepcopy(manifest)
    holder: Any = result
    for part in path[:-1]:
        holder = holder[part]
    old = holder[path[-1]]
    holder[path[-1]] = (not old) if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}x"
    return result


def as_stored(manifest: Manifest) -> Manifest:
    """What an API server makes of a Deployment: defaults, canonical quantities, empty values dropped, a status."""
    live = copy.deepcopy(manifest)
    live["status"] = {"replicas": 1}
    live["metadata"].update({"uid": "x", "resourceVersion": "1", "managedFields": []})
    pod = live["spec"]["template"]["spec"]
    pod.update({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"})
    for container in (*pod["initContainers"], *pod["containers"]):
        resources = container["resources"]
        resources["requests"].update({"cpu": "1500m", "memory": "2Ti"})
        resources["limits"]["memory"] = "3072Gi"
        container["env"].reverse()
        container["env"].append({"name": "INJECTED", "value": "1"})
        for mount in container["volumeMounts"]:
            mount.pop("readOnly", None) if not mount.get("readOnly") else None
    for volume in pod["volumes"]:
        volume.get("persistentVolumeClaim", {}).pop("readOnly", None)
    pod["containers"].append({"name": "sidecar"})
    pod["imagePullSecrets"].reverse()
    return live


def deployment() -> Manifest:
    return only(rendered(service(FULL)), "Deployment")


def test_an_object_as_the_api_server_stores_it_is_covered() -> None:
    assert covers(as_stored(deployment()), deployment())


def test_every_single_field_counts() -> None:
    for manifest in rendered(service(FULL)).manifests:
        live = as_stored(manifest) if manifest["kind"] == "Deployment" else manifest
        paths = list(leaves(manifest))
        assert len(paths) > 10
        for path in paths:
            assert not covers(live, changed(manifest, path)), path


def test_every_single_field_must_be_there() -> None:
    desired = deployment()
    for path in leaves(desired):
        live = copy.deepcopy(desired)
        holder: Any = live
        for part in path[:-1]:
            holder = holder[part]
        del holder[path[-1]]
        assert not covers(live, desired), path


@pytest.mark.parametrize(
    ("live", "desired", "expected"),
    [
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({}, {"a": None}, True),
        ({"a": {"b": 1}}, {"a": None}, False),
        ({}, {"readOnly": False}, True),
        ({}, {"automountServiceAccountToken": False}, False),
        ({}, {"replicas": 1}, False),
        ({"a": [1, 2, 3]}, {"a": [1, 2]}, False),
        ({"a": [2, 1]}, {"a": [1, 2]}, False),
        ({"a": "ab"}, {"a": ["a", "b"]}, False),
        ({"a": ["a"]}, {"a": "a"}, False),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({"env": [{"name": "b"}, {"name": "a", "value": "1"}]}, {"env": [{"name": "a", "value": "1"}]}, True),
        ({"env": [{"name": "a", "value": "2"}]}, {"env": [{"name": "a", "value": "1"}]}, False),
        ({"ports": [{"port": 1, "nodePort": 5}]}, {"ports": [{"port": 1}]}, True),
        ({"emptyDir": {"sizeLimit": "16384Mi"}}, {"emptyDir": {"sizeLimit": "16Gi"}}, True),
        ({"limits": {"x": "1000m"}}, {"limits": {"x": "1"}}, True),
        ({"limits": {"x": "1001m"}}, {"limits": {"x": "1"}}, False),
        ({"data": {"x": "1000m"}}, {"data": {"x": "1"}}, False),
        ({"limits": {"x": "?"}}, {"limits": {"x": "1"}}, False),
        ({"limits": {}}, {"limits": {"x": "1"}}, False),
    ],
)
def test_one_rule_each(live: Manifest, desired: Manifest, expected: bool) -> None:
    assert covers(live, desired) is expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.5", Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        ("1k", 1000),
        ("1Ki", 1024),
        ("16Gi", 16 * 2**30),
        ("1.5Ti", 3 * 2**39),
        ("2E", 2 * 10**18),
        ("1e3", 1000),
        ("12E2", 1200),
        ("-1M", -1_000_000),
        ("100n", Fraction(1, 10**7)),
        ("5.", 5),
        (".5", Fraction(1, 2)),
    ],
)
def test_quantities_are_numbers(text: str, value: int | Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", ["", "16gb", "1KiB", "Gi", "0x8", "NaN", "1 Gi", "1e", "--1", "1K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no Kubernetes quantity"):
        quantity.parse(text)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "G"]))
@PROPERTY
def test_a_thousand_of_a_unit_is_one_of_the_next(number: int, unit: str) -> None:
    following = {"": "k", "k": "M", "M": "G", "G": "T"}[unit]
    assert quantity.parse(f"{number * 1000}{unit}") == quantity.parse(f"{number}{following}")

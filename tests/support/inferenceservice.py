"""InferenceServices for tests: the least that is valid, and changes to it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]

API = "/apis/serving.sglang-operator.io/v1alpha1"
MINIMAL_SPEC: Manifest = {
    "model": {"uri": "hf://example/model"},
    "gpus": {"count": 8},
    "engine": {"image": "example/sglang:v0.5.23"},
}
DRAFTING: Manifest = {"algorithm": "EAGLE3", "draftModel": {"uri": "hf://example/draft"}}


def collection(namespace: str) -> str:
    """The path of a namespace's InferenceServices."""
    return f"{API}/namespaces/{namespace}/inferenceservices"


def service(changes: Mapping[str, Any] | None = None, *, name: str = "case") -> Manifest:
    """A minimal InferenceService whose spec is changed: objects are merged, everything else is replaced."""
    return {
        "apiVersion": "serving.sglang-operator.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": merged(MINIMAL_SPEC, changes or {}),
    }


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Manifest:
    """Return `base` with `changes` merged into it, both left as they are."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        held = result.get(key)
        both = isinstance(value, Mapping) and isinstance(held, Mapping)
        result[key] = merged(held, value) if both and held is not None else copy.deepcopy(value)
    return result


def at(path: str, value: object) -> Manifest:
    """Changes that set one field: `at("gpus.count", 9)`; a part `0` is the first item of a list."""
    for part in reversed(path.split(".")):
        value = [value] if part == "0" else {part: value}
    assert isinstance(value, dict)
    return value

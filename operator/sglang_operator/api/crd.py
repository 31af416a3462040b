"""The CustomResourceDefinition, written from the models."""

from __future__ import annotations

from typing import Final

from sglang_operator.api import names
from sglang_operator.api.rules import CEL_RULES
from sglang_operator.api.structural import RULES, Node, structural
from sglang_operator.api.v1alpha1 import InferenceServiceSpec, InferenceServiceStatus, Manifest

CRD_NAME: Final = f"{names.PLURAL}.{names.GROUP}"

_DESCRIPTION: Final = (
    "InferenceService runs a model with SGLang on GPU nodes: it patches and checks SGLang, starts the servers, and "
    "moves the batch size from which on they stop speculative decoding, without restarting them."
)


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> Manifest:
    return {
        "name": name,
        "type": kind,
        "jsonPath": path,
        "description": description,
        "priority": 1 if wide else 0,
    }


def printer_columns() -> list[Manifest]:
    """Return the columns of `kubectl get`; those with priority 1 appear with `-o wide`."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    threshold = ".spec.speculation.disableThreshold"
    return [
        _column("Model", "string", ".spec.model.uri", "Model that is served."),
        _column("GPUs", "integer", ".spec.gpus.count", "GPUs of one replica."),
        _column("Replicas", "integer", ".spec.replicas", "Replicas asked for."),
        _column("Threshold", "integer", ".status.threshold.batchSize", "Batch size from which on drafting is off."),
        _column("Ready", "string", f"{ready}.status", "Whether the service is ready."),
        _column("Reason", "string", f"{ready}.reason", "Why it is, or is not."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
        _column("Algorithm", "string", ".spec.speculation.algorithm", "Speculative decoding algorithm.", wide=True),
        _column("Mode", "string", f"{threshold}.mode", "Who decides the threshold.", wide=True),
        _column("URL", "string", ".status.url", "Address inside the cluster.", wide=True),
        _column("Release", "string", ".status.engineRelease", "SGLang release in the image.", wide=True),
    ]


def openapi_schema() -> Node:
    """Return the structural schema of the whole resource, rules included."""
    properties: Node = {
        "apiVersion": {"type": "string", "description": f"Must be {names.API_VERSION}."},
        "kind": {"type": "string", "description": f"Must be {names.KIND}."},
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
        "spec": structural(InferenceServiceSpec.model_json_schema(by_alias=True)),
        "status": structural(InferenceServiceStatus.model_json_schema(by_alias=True)),
    }
    schema: Node = {
        "description": _DESCRIPTION,
        "type": "object",
        "required": ["spec"],
        "properties": properties,
    }
    for rule in CEL_RULES:
        _node_at(schema, rule.path).setdefault(RULES, []).append(rule.validation())
    return schema


def _node_at(schema: Node, path: tuple[str, ...]) -> Node:
    node: Node = schema
    for name in path:
        node = node["properties"][name]
    return node


def crd() -> Manifest:
    """Return the CustomResourceDefinition."""
    version: Manifest = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": printer_columns(),
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": openapi_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [version],
        },
    }

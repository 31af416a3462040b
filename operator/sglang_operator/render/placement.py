"""Which nodes a pod may run on: GPU feature discovery's labels, joined with what the user asks for.

Labels: https://github.com/NVIDIA/k8s-device-plugin, `docs/gpu-feature-discovery`.
"""

from __future__ import annotations

from typing import Any, Final

from sglang_operator.api.v1alpha1 import Architecture, GPUSpec, InferenceService, Manifest
from sglang_operator.errors import SpecError

LABEL_COMPUTE_MAJOR: Final = "nvidia.com/gpu.compute.major"
LABEL_COUNT: Final = "nvidia.com/gpu.count"
LABEL_PRODUCT: Final = "nvidia.com/gpu.product"
GPU_TAINT: Final = "nvidia.com/gpu"

BLACKWELL_COMPUTE_MAJORS: Final = ("10", "12")
"""Compute capability 10.x: B200, GB200, B300. 12.x: RTX PRO 6000 and its kin. 11.x is no data centre card."""
NODE_GPUS: Final = 8
"""Nodes are the unit of this product: eight GPUs that see each other, whichever part of them a replica takes."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_REQUIRED_PATH: Final = f"spec.podTemplate.affinity.nodeAffinity.{_REQUIRED}"


def affinity(service: InferenceService) -> Manifest:
    """The user's affinity, with the nodes' GPUs required besides.

    Raises:
        SpecError: the user's node affinity is malformed, or can match no node.
    """
    given = service.spec.pod_template.affinity
    result: Manifest = given.manifest() if given is not None else {}
    node = _mapping(result.get("nodeAffinity"), "spec.podTemplate.affinity.nodeAffinity")
    required = node.get(_REQUIRED)
    terms = [{}] if required is None else _matching_terms(_mapping(required, _REQUIRED_PATH))
    ours = _gpu_expressions(service.spec.gpus)
    merged = {"nodeSelectorTerms": [_narrowed(term, ours) for term in terms]}
    return {**result, "nodeAffinity": {**node, _REQUIRED: merged}}


def tolerations(service: InferenceService) -> list[Manifest]:
    """Tolerate the usual taint of GPU nodes, then what the user tolerates."""
    gpu: Manifest = {"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    given = [toleration.manifest() for toleration in service.spec.pod_template.tolerations]
    return [gpu, *(toleration for toleration in given if toleration != gpu)]


def _gpu_expressions(gpus: GPUSpec) -> list[Manifest]:
    expressions: list[Manifest] = [{"key": LABEL_COUNT, "operator": "Gt", "values": [str(NODE_GPUS - 1)]}]
    if gpus.architecture is Architecture.BLACKWELL:
        expressions.append({"key": LABEL_COMPUTE_MAJOR, "operator": "In", "values": list(BLACKWELL_COMPUTE_MAJORS)})
    if gpus.product:
        expressions.append({"key": LABEL_PRODUCT, "operator": "In", "values": list(gpus.product)})
    return expressions


def _matching_terms(required: Manifest) -> list[Manifest]:
    """Terms that can match a node: they are alternatives, and an empty one matches nothing."""
    given = required.get("nodeSelectorTerms")
    terms = given if isinstance(given, list) else []
    usable = [
        term
        for index, item in enumerate(terms)
        if (term := _mapping(item, f"{_REQUIRED_PATH}.nodeSelectorTerms[{index}]")) and any(term.values())
    ]
    if not usable:
        raise SpecError(
            "InvalidSpec",
            f"{_REQUIRED_PATH} matches no node: each of nodeSelectorTerms must hold matchExpressions or matchFields. "
            "Fill a term, or leave the field out.",
        )
    return usable


def _narrowed(term: Manifest, ours: list[Manifest]) -> Manifest:
    """Inside a term all expressions must hold, so ours go into every alternative."""
    theirs = term.get("matchExpressions") or []
    if not isinstance(theirs, list):
        raise SpecError("InvalidSpec", f"{_REQUIRED_PATH}: matchExpressions must be a list.")
    return {**term, "matchExpressions": [*ours, *theirs]}


def _mapping(value: Any, field: str) -> Manifest:  # noqa: ANN401
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError("InvalidSpec", f"{field} must be an object, as in a pod.")
    return value

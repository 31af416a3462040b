"""Names that users, manifests and other programs see. None may change once released."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

GROUP: Final = "serving.sglang-operator.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SINGULAR: Final = "inferenceservice"
SHORT_NAME: Final = "sgsvc"
CATEGORY: Final = "sglang"

FIELD_MANAGER_CHILDREN: Final = "sglang-operator"
"""Field manager of Deployments, Services and ConfigMaps."""
FIELD_MANAGER_STATUS: Final = "sglang-operator-status"
"""Field manager of the custom resource's status."""

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_SERVICE: Final = f"{GROUP}/service"
"""On every child and pod: the name of the InferenceService it belongs to."""

MANAGED_BY: Final = "sglang-operator"

ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
"""On each child: digest of the manifest as last applied."""
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
"""On the pod template: digest of everything that must roll pods."""
ANNOTATION_SPEC_REVISION: Final = f"{GROUP}/spec-revision"
"""On the Deployment: digest of the pod template without the engine patch; it pins the patch until the spec changes."""
ANNOTATION_PATCH: Final = f"{GROUP}/patch"
"""On the Deployment and its pod template: digest of the engine patch that its pods run."""
ANNOTATION_DECIDED_AT: Final = f"{GROUP}/decided-at"
ANNOTATION_DECISION_SOURCE: Final = f"{GROUP}/decision-source"
ANNOTATION_DECISION_MESSAGE: Final = f"{GROUP}/decision-message"
ANNOTATION_DECISION_EVIDENCE: Final = f"{GROUP}/decision-evidence"

CONTAINER_ENGINE: Final = "engine"
CONTAINER_PATCH: Final = "patch"
PORT_NAME: Final = "http"

THRESHOLD_KEY: Final = "batchSize"
"""Key of the threshold ConfigMap."""
THRESHOLD_VARIABLE: Final = "SPECULATIVE_DISABLE_BATCH_THRESHOLD"
THRESHOLD_FIELD: Final = "speculative_disable_batch_threshold"
"""Name of the threshold in SGLang's server arguments, live updates and internal states."""
THRESHOLD_MAX: Final = 1_000_000
PROBE_KEY: Final = "probePermille"
"""Key of the threshold ConfigMap: the probe share that goes with the threshold."""
PROBE_FIELD: Final = "speculative_probe_permille"
"""Name of the probe share in SGLang's server arguments, live updates and internal states."""
PROBE_MAX_PERMILLE: Final = 500

API_KEY_VARIABLE: Final = "SGLANG_API_KEY"
ADMIN_API_KEY_VARIABLE: Final = "SGLANG_ADMIN_API_KEY"
"""In the engine container, from a Secret: the keys that the server asks for. The operator finds the Secret by them."""

MAX_NAME_LENGTH: Final = 253
MAX_LABEL_LENGTH: Final = 63


class ServiceKey(NamedTuple):
    """Identity of one InferenceService in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def child_name(service: str, suffix: str = "", *, limit: int = MAX_LABEL_LENGTH) -> str:
    """Name of a child object: the service's name and a suffix, cut to `limit` letters.

    A name that is too long, or that holds a dot (Services may not), keeps its start and gets a digest of the
    whole, so that two services never share a child.
    """
    tail = f"-{suffix}" if suffix else ""
    full = f"{service}{tail}"
    if len(full) <= limit and "." not in full:
        return full
    digest = hashlib.sha256(service.encode()).hexdigest()[:8]
    head = service.replace(".", "-")[: limit - len(tail) - len(digest) - 1].rstrip("-")
    return f"{head}-{digest}{tail}"

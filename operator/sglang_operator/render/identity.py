"""What every child has in common: name, labels and the owner that it is deleted with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import InferenceService, Manifest

APPLICATION: Final = "sglang"
COMPONENT: Final = "inference"


def labels(service: InferenceService) -> dict[str, str]:
    """Labels of every child and pod."""
    return {
        names.LABEL_NAME: APPLICATION,
        names.LABEL_INSTANCE: service.name,
        names.LABEL_COMPONENT: COMPONENT,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_SERVICE: service.name,
    }


def selector(service: InferenceService) -> dict[str, str]:
    """Labels that select the service's pods. A Deployment's selector can't be changed, so neither can this."""
    return {names.LABEL_SERVICE: service.name}


def metadata(
    service: InferenceService, name: str, *, annotations: Mapping[str, str] = MappingProxyType({})
) -> Manifest:
    """Metadata of a child: deleted with the service by the garbage collector, so that no finalizer is needed."""
    return {
        "name": name,
        "namespace": service.namespace,
        "labels": labels(service),
        "annotations": dict(annotations),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": service.name,
                "uid": service.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }

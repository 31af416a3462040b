"""Read a stored InferenceService: its spec as models, and its status as far as it can still be read."""

from __future__ import annotations

from pydantic import ValidationError

from sglang_operator.api.v1alpha1 import InferenceService, InferenceServiceStatus, Manifest, parse_spec


def read_resource(stored: Manifest) -> InferenceService:
    """Return the resource with its spec.

    Raises:
        SpecError: the spec is not what the models allow; the sentence names the fields.
    """
    metadata = stored["metadata"]
    return InferenceService(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=parse_spec(stored.get("spec", {})),
    )


def previous_status(stored: Manifest) -> InferenceServiceStatus | None:
    """Return the stored status, or None if there is none or another version of the operator left something else."""
    if not stored.get("status"):
        return None
    try:
        return InferenceServiceStatus.model_validate(stored["status"])
    except ValidationError:
        return None

"""From a service and a decision to the manifests of all its children. Same input, same bytes."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_operator.api import names
from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import Algorithm, InferenceService, Manifest
from sglang_operator.render import enginepatch, network, pod, revision, workload
from sglang_operator.render.enginepatch import PatchArchive, PinnedPatch

_NO_PATCH_YET = "-"


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Children of one service in the order to apply them, and what its pods should carry.

    `revision`: the pods' revision annotation. `patch_digest` and `patch_config_map`: the engine patch that pods use
    and the ConfigMap that holds it, None without speculation. A pinned patch's ConfigMap is in the cluster only, not
    among `manifests`: it must be kept.
    """

    manifests: tuple[Manifest, ...]
    revision: str
    patch_digest: str | None
    patch_config_map: str | None


def render(
    service: InferenceService, *, decision: Decision | None, patch: PatchArchive, pinned: PinnedPatch | None
) -> Rendered:
    """Render all children of a service. `decision` is the threshold in force, None without speculation.

    `pinned` is the patch of the running Deployment, if the ConfigMap that holds it is still there. It is kept as long
    as the pods need not change for another reason, so that a new operator restarts no model.

    Raises:
        SpecError: the spec asks for something that can't be.
        ValueError: there is speculation and no decision, so that pods would wait for a ConfigMap.
    """
    speculates = service.spec.speculation.algorithm is not Algorithm.NONE
    if speculates and decision is None:
        raise ValueError("a service with speculation can't be rendered without a decision")
    spec_revision = revision.digest(pod.template(service, patch_digest=_NO_PATCH_YET if speculates else None))
    digest = enginepatch.chosen_digest(patch, pinned, spec_revision) if speculates else None
    template = pod.template(service, patch_digest=digest)
    pod_revision = revision.digest(template)
    deployment = workload.deployment(
        service,
        revision.annotated(template, names.ANNOTATION_REVISION, pod_revision),
        spec_revision=spec_revision,
        patch_digest=digest,
    )
    manifests = [
        *([enginepatch.config_map(service, patch)] if digest == patch.digest else []),
        *([network.threshold_config_map(service, decision)] if speculates and decision else []),
        network.network_service(service),
        deployment,
    ]
    return Rendered(
        manifests=tuple(revision.sealed(manifest) for manifest in manifests),
        revision=pod_revision,
        patch_digest=digest,
        patch_config_map=None if digest is None else enginepatch.config_map_name(service.name, digest),
    )

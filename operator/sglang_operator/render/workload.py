"""The Deployment. Replicas that span nodes would need another kind of workload, which would be rendered here."""

from __future__ import annotations

from typing import Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import InferenceService, InferenceServiceSpec, Manifest, RolloutStrategy
from sglang_operator.errors import SpecError
from sglang_operator.render import identity

PREPARATION_SECONDS: Final = 600
"""Time beside the start budget for pulling the image and for the patch container."""
REVISION_HISTORY: Final = 3


def deployment_name(service: str) -> str:
    """Name of the Deployment of an InferenceService."""
    return names.child_name(service)


def deployment(
    service: InferenceService, template: Manifest, *, spec_revision: str, patch_digest: str | None
) -> Manifest:
    """The Deployment of a pod template.

    Raises:
        SpecError: the rollout would count as failed before the server's start budget is over.
    """
    annotations = {names.ANNOTATION_SPEC_REVISION: spec_revision}
    if patch_digest is not None:
        annotations[names.ANNOTATION_PATCH] = patch_digest
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": identity.metadata(service, deployment_name(service.name), annotations=annotations),
        "spec": {
            "replicas": service.spec.replicas,
            "selector": {"matchLabels": identity.selector(service)},
            "strategy": _strategy(service.spec.rollout.strategy),
            "progressDeadlineSeconds": _progress_deadline_seconds(service.spec),
            "revisionHistoryLimit": REVISION_HISTORY,
            "template": template,
        },
    }


def _strategy(strategy: RolloutStrategy) -> Manifest:
    """Never a surge: the new pod would wait for GPUs that the old one holds, and the old one for the new."""
    if strategy is RolloutStrategy.ROLLING:
        return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return {"type": "Recreate"}


def _progress_deadline_seconds(spec: InferenceServiceSpec) -> int:
    budget_seconds = spec.engine.startup_timeout_seconds
    given = spec.rollout.progress_deadline_seconds
    if given is None:
        return budget_seconds + PREPARATION_SECONDS
    if given <= budget_seconds:
        raise SpecError(
            "InvalidSpec",
            f"spec.rollout.progressDeadlineSeconds ({given}) must be above spec.engine.startupTimeoutSeconds "
            f"({budget_seconds}): a server that is still loading would count as a failed rollout. "
            "Raise it, or leave it out.",
        )
    return given

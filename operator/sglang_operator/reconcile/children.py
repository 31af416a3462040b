"""Bring a service's children to the rendered state: write only what differs, delete what is no longer used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_operator.adapters.ports import ChildKind, Cluster
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import ClusterError
from sglang_operator.render.compare import covers
from sglang_operator.render.desired import Rendered
from sglang_operator.render.enginepatch import PinnedPatch


@dataclass(frozen=True, kw_only=True)
class Children:
    """What the cluster holds for one service, as manifests."""

    deployments: tuple[Manifest, ...]
    services: tuple[Manifest, ...]
    config_maps: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]

    def find(self, kind: str, name: str) -> Manifest | None:
        """Return the child of this kind and name, or None."""
        by_kind = {
            ChildKind.DEPLOYMENT: self.deployments,
            ChildKind.SERVICE: self.services,
            ChildKind.CONFIG_MAP: self.config_maps,
        }
        return next((child for child in by_kind[ChildKind(kind)] if child["metadata"]["name"] == name), None)


async def read_children(cluster: Cluster, key: ServiceKey) -> Children:
    """Read all children and pods of a service.

    Raises:
        ClusterError: the API server refused or failed.
    """
    deployments, services, config_maps, pods = await asyncio.gather(
        cluster.list_children(ChildKind.DEPLOYMENT, key),
        cluster.list_children(ChildKind.SERVICE, key),
        cluster.list_children(ChildKind.CONFIG_MAP, key),
        cluster.list_pods(key),
    )
    return Children(
        deployments=tuple(deployments), services=tuple(services), config_maps=tuple(config_maps), pods=tuple(pods)
    )


def pinned_patch(children: Children, deployment_name: str) -> PinnedPatch | None:
    """Return the engine patch that the running Deployment uses, if its ConfigMap is still there."""
    deployment = children.find(ChildKind.DEPLOYMENT, deployment_name)
    annotations = deployment["metadata"].get("annotations", {}) if deployment else {}
    digest = annotations.get(names.ANNOTATION_PATCH)
    spec_revision = annotations.get(names.ANNOTATION_SPEC_REVISION)
    if not digest or not spec_revision:
        return None
    held = any(
        config_map["metadata"].get("annotations", {}).get(names.ANNOTATION_PATCH) == digest
        for config_map in children.config_maps
    )
    return PinnedPatch(digest=digest, spec_revision=spec_revision) if held else None


async def apply_children(
    cluster: Cluster, rendered: Rendered, children: Children
) -> tuple[tuple[str, ClusterError], ...]:
    """Write what differs, in the rendered order; one failure doesn't stop the others.

    Returns the names of what could not be written, each with its error.
    """
    failures: list[tuple[str, ClusterError]] = []
    for manifest in rendered.manifests:
        name = manifest["metadata"]["name"]
        live = children.find(manifest["kind"], name)
        if live is not None and _is_current(live, manifest):
            continue
        try:
            if live is None:
                await _refuse_foreign(cluster, manifest)
            await cluster.apply(manifest)
        except ClusterError as error:
            failures.append((name, error))
    return tuple(failures)


async def _refuse_foreign(cluster: Cluster, manifest: Manifest) -> None:
    """Make sure that an apply, which forces conflicts, takes over nothing that belongs to somebody else."""
    metadata = manifest["metadata"]
    key = ServiceKey(metadata["namespace"], metadata["name"])
    existing = await cluster.get_child(ChildKind(manifest["kind"]), key)
    if existing is None:
        return
    owners = {owner["uid"] for owner in existing["metadata"].get("ownerReferences", [])}
    if metadata["ownerReferences"][0]["uid"] not in owners:
        raise ClusterError(
            f"{manifest['kind']} {key} exists and does not belong to this InferenceService. "
            "Rename the InferenceService, or delete the object if nobody needs it."
        )


async def delete_stale(cluster: Cluster, key: ServiceKey, rendered: Rendered, children: Children) -> None:
    """Delete own children that are no longer rendered and that no pod can still need.

    A ConfigMap stays as long as a pod that names it exists: without it the pod's containers could not restart.
    """
    wanted = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendered.manifests}
    if rendered.patch_config_map is not None:
        wanted.add((ChildKind.CONFIG_MAP.value, rendered.patch_config_map))
    needed = {name for pod in children.pods for name in _config_maps_of(pod)}
    owned = (*children.deployments, *children.services, *children.config_maps)
    for child in owned:
        name = child["metadata"]["name"]
        if (child["kind"], name) in wanted or name in needed or child["metadata"].get("deletionTimestamp"):
            continue
        await cluster.delete_child(ChildKind(child["kind"]), ServiceKey(key.namespace, name))


def _config_maps_of(pod: Manifest) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", []):
        if "configMap" in volume:
            yield volume["configMap"]["name"]
    for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("configMapKeyRef")
            if reference:
                yield reference["name"]


def _is_current(live: Manifest, desired: Manifest) -> bool:
    annotations = live["metadata"].get("annotations", {})
    applied = desired["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    return annotations.get(names.ANNOTATION_APPLIED) == applied and covers(live, desired)

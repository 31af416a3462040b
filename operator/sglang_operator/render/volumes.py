"""Volumes that every pod has besides the engine patch's, and the user's own.

======  ====================  =====================================================================
volume  mounted at            why
======  ====================  =====================================================================
shm     `/dev/shm`            in memory: NCCL and the tokenizer pass data through it, 64 MiB is too little
home    `/home/sglang`        what programs write without being asked
cache   `/opt/cache`          weights and compiled kernels; the one that may be a claim
tmp     `/tmp`                sockets between the server's processes; the root file system is read-only
======  ====================  =====================================================================
"""

from __future__ import annotations

import posixpath
from typing import Final

from sglang_operator.api.v1alpha1 import InferenceService, InferenceServiceSpec, Manifest
from sglang_operator.errors import SpecError
from sglang_operator.render import enginepatch, quantity

SHARED_MEMORY_PATH: Final = "/dev/shm"  # noqa: S108 - the place that NCCL uses
HOME_PATH: Final = "/home/sglang"
CACHE_PATH: Final = "/opt/cache"
TEMPORARY_PATH: Final = "/tmp"  # noqa: S108 - a volume of the pod's own

_PATHS: Final[dict[str, str]] = {
    "shm": SHARED_MEMORY_PATH,
    "home": HOME_PATH,
    "cache": CACHE_PATH,
    "tmp": TEMPORARY_PATH,
}
_PATCH_PATHS: Final[dict[str, str]] = {
    enginepatch.ARCHIVE_VOLUME: enginepatch.ARCHIVE_FOLDER,
    enginepatch.TREE_VOLUME: enginepatch.TREE_PATH,
}
_OWN_PATHS: Final[dict[str, str]] = {**_PATHS, **_PATCH_PATHS}
_REMEDIES: Final[dict[str, str]] = {
    SHARED_MEMORY_PATH: "its size is spec.engine.sharedMemorySize",
    CACHE_PATH: "what lies there is chosen by spec.model.cache",
}


def volumes(service: InferenceService, patch_digest: str | None) -> list[Manifest]:
    """All volumes of the pod: the operator's, then the user's.

    Raises:
        SpecError: a volume of the user's takes a name of the operator's, or shared memory exceeds the memory limit.
    """
    spec = service.spec
    _check_shared_memory(spec)
    own: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.engine.shared_memory_size}},
        {"name": "home", "emptyDir": {}},
        {"name": "cache", **_cache(spec)},
        {"name": "tmp", "emptyDir": {}},
        *(enginepatch.volumes(service, patch_digest) if patch_digest is not None else []),
    ]
    given = [volume.manifest() for volume in spec.pod_template.volumes]
    _check_volumes(given)
    return [*own, *given]


def mounts(service: InferenceService, *, patched: bool) -> list[Manifest]:
    """Mounts of both containers: the operator's, then the user's.

    Raises:
        SpecError: a mount of the user's takes a path of the operator's, or names a volume that isn't there.
    """
    own = [{"name": name, "mountPath": path} for name, path in _PATHS.items()]
    given = [mount.manifest() for mount in service.spec.pod_template.volume_mounts]
    declared = {volume.manifest().get("name") for volume in service.spec.pod_template.volumes}
    _check_mounts(given, declared)
    return [*own, *(enginepatch.mounts() if patched else []), *given]


def _cache(spec: InferenceServiceSpec) -> Manifest:
    cache = spec.model.cache
    if cache.claim_name is not None:
        return {"persistentVolumeClaim": {"claimName": cache.claim_name}}
    return {"emptyDir": {} if cache.size_limit is None else {"sizeLimit": cache.size_limit}}


def _check_shared_memory(spec: InferenceServiceSpec) -> None:
    size, limit = spec.engine.shared_memory_size, spec.engine.resources.memory_limit
    if limit is not None and quantity.parse(size) >= quantity.parse(limit):
        raise SpecError(
            "InvalidSpec",
            f"spec.engine.sharedMemorySize ({size}) must be below spec.engine.resources.memoryLimit ({limit}): "
            "shared memory counts against the limit. Lower the one or raise the other.",
        )


def _check_volumes(given: list[Manifest]) -> None:
    seen: set[object] = set()
    for index, volume in enumerate(given):
        name = volume.get("name")
        field = f"spec.podTemplate.volumes[{index}]"
        if name in _OWN_PATHS:
            raise SpecError("InvalidSpec", f"{field}: {name} is a volume of the operator's: choose another name.")
        if name in seen:
            raise SpecError("InvalidSpec", f"{field}: {name} is there twice: rename one of them.")
        seen.add(name)


def _check_mounts(given: list[Manifest], declared: set[object]) -> None:
    own = {path: name for name, path in _OWN_PATHS.items()}
    seen: set[str] = set()
    for index, mount in enumerate(given):
        path = posixpath.normpath(str(mount.get("mountPath", "")))
        field = f"spec.podTemplate.volumeMounts[{index}]"
        if path in own:
            hint = _REMEDIES.get(path, "choose another mountPath")
            raise SpecError("InvalidSpec", f"{field}: the operator mounts its own volume at {path}: {hint}.")
        if path in seen:
            raise SpecError("InvalidSpec", f"{field}: {path} is there twice: keep one of them.")
        if mount.get("name") not in declared:
            raise SpecError(
                "InvalidSpec", f"{field}: {mount.get('name')} is no volume: declare it in spec.podTemplate.volumes."
            )
        seen.add(path)

"""The engine patch inside a pod: one archive from a ConfigMap, one volume with the patched sources.

An init container of the server's own image copies the SGLang tree that the server would import, patches the copy and
proves it; the server is then started by the same archive, which puts the copy first on the path. An init container's
writes to its own root file system would be lost, hence the shared volume.

The ConfigMap is named by the archive's digest and never changes: pods of another revision keep the one they were
started with, and a rollback finds it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import InferenceService, Manifest
from sglang_operator.render import identity

ARCHIVE_FOLDER: Final = "/opt/specpatch"
ARCHIVE_FILE: Final = "specpatch.pyz"
ARCHIVE_PATH: Final = f"{ARCHIVE_FOLDER}/{ARCHIVE_FILE}"
TREE_PATH: Final = "/opt/sglang-patched"
TERMINATION_LOG: Final = "/dev/termination-log"

ARCHIVE_VOLUME: Final = "specpatch"
TREE_VOLUME: Final = "sglang-patched"

NAME_DIGITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class PatchArchive:
    """The engine patch that this operator brings: the bytes of a zipapp and their SHA-256 in hexadecimal."""

    digest: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class PinnedPatch:
    """The engine patch that the running pods have, and the spec revision they were rendered from."""

    digest: str
    spec_revision: str


def chosen_digest(archive: PatchArchive, pinned: PinnedPatch | None, spec_revision: str) -> str:
    """Keep the running pods' patch until the spec asks for new pods anyway."""
    if pinned is not None and pinned.spec_revision == spec_revision:
        return pinned.digest
    return archive.digest


def config_map_name(service_name: str, digest: str) -> str:
    """Name of the ConfigMap that holds the archive with this digest."""
    return names.child_name(service_name, f"specpatch-{digest[:NAME_DIGITS]}")


def config_map(service: InferenceService, archive: PatchArchive) -> Manifest:
    """The archive as a ConfigMap. Immutable: the kubelet need not watch it, and nobody can change running code."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": identity.metadata(
            service,
            config_map_name(service.name, archive.digest),
            annotations={names.ANNOTATION_PATCH: archive.digest},
        ),
        "immutable": True,
        "binaryData": {ARCHIVE_FILE: base64.b64encode(archive.content).decode("ascii")},
    }


def volumes(service: InferenceService, digest: str) -> list[Manifest]:
    """Volumes of the archive and of the patched sources."""
    return [
        {"name": ARCHIVE_VOLUME, "configMap": {"name": config_map_name(service.name, digest)}},
        {"name": TREE_VOLUME, "emptyDir": {}},
    ]


def mounts() -> list[Manifest]:
    """Mounts in both containers. The tree stays writable so that Python can keep its byte code beside it."""
    return [
        {"name": ARCHIVE_VOLUME, "mountPath": ARCHIVE_FOLDER, "readOnly": True},
        {"name": TREE_VOLUME, "mountPath": TREE_PATH},
    ]


def apply_command() -> list[str]:
    """Patch and prove; the outcome goes where the kubelet takes a container's last words from."""
    return ["python3", ARCHIVE_PATH, "apply", "--to", TREE_PATH, "--termination-log", TERMINATION_LOG]


def run_command(command: list[str]) -> list[str]:
    """Run a command on the patched sources; refused when they aren't there or aren't what was proven."""
    return ["python3", ARCHIVE_PATH, "run", "--tree", TREE_PATH, "--", *command]

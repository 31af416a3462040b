"""What an OCI archive holds, read from its index without unpacking it."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

_NAME_ANNOTATION = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """An image's full name and the digest of its manifest; the digest is empty in an archive of `docker save`."""

    name: str
    digest: str


def describe(archive: Path) -> Image:
    """Raises ClusterError for a file that isn't an archive of one named image."""
    try:
        with tarfile.open(archive) as tar:
            members = set(tar.getnames())
            if "manifest.json" in members:
                return _docker_image(json.loads(_read(tar, "manifest.json")))
            return _oci_image(json.loads(_read(tar, "index.json")))
    except OSError as error:
        raise ClusterError(f"{archive}: {error.strerror}; make one by: python3 hack/cluster build-image") from error
    except (tarfile.TarError, KeyError, ValueError, IndexError) as error:
        problem = str(error).splitlines()[0]
        raise ClusterError(f"{archive}: not an archive of one named image ({problem})") from error


def _read(tar: tarfile.TarFile, member: str) -> bytes:
    stream = tar.extractfile(member)
    if stream is None:
        raise KeyError(member)
    return stream.read()


def _docker_image(manifest: list[dict[str, list[str]]]) -> Image:
    name = manifest[0]["RepoTags"][0]
    # Docker leaves its own registry out of a name; containerd puts it back.
    registry, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not any(mark in registry for mark in ".:") and registry != "localhost":
        name = f"docker.io/{name}"
    return Image(name, "")


def _oci_image(index: dict[str, list[dict[str, dict[str, str]]]]) -> Image:
    entry = index["manifests"][0]
    return Image(entry["annotations"][_NAME_ANNOTATION], str(entry["digest"]))

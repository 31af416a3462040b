"""Builds an image from an ordinary Dockerfile into an OCI archive, with a container engine or without one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from localcluster import contexts, hostaccess, locks
from localcluster.commands import succeeds
from localcluster.errors import ClusterError
from localcluster.settings import BASE_IMAGE, IMAGE_RECIPES

_BUILD_SECONDS = 3600
_SIGNATURE_POLICY = f"--signature-policy={IMAGE_RECIPES / 'policy.json'}"
_TAG = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Request:
    """An image to build; `build_args` are NAME=VALUE, `volumes` HOST:CONTAINER[:ro], shown to RUN commands only."""

    tag: str
    dockerfile: Path
    context: Path
    build_args: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Built:
    """The image's OCI archive, and whether it had to be made anew."""

    archive: Path
    rebuilt: bool


def working_engine() -> str | None:
    """`docker` or `podman`, when one is installed and answers."""
    for engine in ("docker", "podman"):
        if shutil.which(engine) and succeeds([engine, "info"], deadline_seconds=15):
            return engine
    return None


def archive_path(cache: Path, tag: str) -> Path:
    """Where the image of this name is kept. Raises ClusterError unless the name is full: registry, name and tag."""
    if not _TAG.fullmatch(tag):
        raise ClusterError(f"image name {tag!r}: give it in full, like docker.io/sglang-operator/operator:dev")
    return cache / "images" / (re.sub(r"[/:]", "_", tag) + ".tar")


def build(request: Request, cache: Path, engine: str | None, *, extra_key: str = "", again: bool = False) -> Built:
    """The image's archive, built again only when something of it changed.

    What a volume holds is not part of that decision. Raises ClusterError for a bad request or a failed build; the
    builder's own output is on standard error.
    """
    archive = archive_path(cache, request.tag)
    for path in (request.dockerfile, request.context):
        if not path.exists():
            raise ClusterError(f"{path}: no such file or folder")
    key_file = archive.with_suffix(".key")
    with locks.exclusive(cache / "images" / ".lock", "the image builder"):
        key = contexts.digest(
            request.context,
            request.dockerfile,
            engine or "buildah",
            request.tag,
            extra_key,
            *sorted(request.build_args),
            *request.volumes,
        )
        if not again and archive.is_file() and key_file.is_file() and key_file.read_text() == key:
            return Built(archive, rebuilt=False)
        key_file.unlink(missing_ok=True)
        unfinished = archive.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        if engine is None:
            _build_with_buildah(request, cache, unfinished)
        else:
            _build_with_engine(request, engine, unfinished)
        unfinished.replace(archive)
        key_file.write_text(key)
    return Built(archive, rebuilt=True)


def _build_with_engine(request: Request, engine: str, archive: Path) -> None:
    argv = [engine, "build", "--tag", request.tag, "--file", str(request.dockerfile)]
    for argument in request.build_args:
        argv += ["--build-arg", argument]
    if request.volumes and engine == "docker":
        raise ClusterError("--volume: `docker build` has no such option; podman and buildah have it")
    for volume in request.volumes:
        argv += ["--volume", volume]
    _run_visibly([*argv, str(request.context)])
    _run_visibly([engine, "save", "--output", str(archive), request.tag])


def _build_with_buildah(request: Request, cache: Path, archive: Path) -> None:
    arguments = [*request.build_args, *hostaccess.build_arguments(request.dockerfile)]
    declared = hostaccess.declared_arguments(request.dockerfile)
    if "BASE" in declared and not any(argument.startswith("BASE=") for argument in arguments):
        arguments.append(f"BASE={BASE_IMAGE}")
    with tempfile.TemporaryDirectory(prefix="build-") as scratch:
        argv = [*_buildah(cache), "bud", "--isolation=chroot", "--layers", "--pull=false"]
        argv += [_SIGNATURE_POLICY, f"--tag={request.tag}", f"--file={request.dockerfile}"]
        argv += [f"--build-arg={argument}" for argument in arguments]
        argv += [f"--volume={volume}" for volume in request.volumes]
        argv += [f"--volume={mount.source}:{mount.target}:ro" for mount in hostaccess.mounts(Path(scratch))]
        _run_visibly([*argv, str(request.context)])
    # The archive is read on this machine and right away, so the time to make it counts and its size doesn't.
    quickly = ["--compression-format=zstd", "--compression-level=1"]
    push = [*_buildah(cache), "push", "--quiet", *quickly, _SIGNATURE_POLICY]
    _run_visibly([*push, request.tag, f"oci-archive:{archive}:{request.tag}"])


def _buildah(cache: Path) -> list[str]:
    """buildah with a storage of its own, in a mount namespace: an interrupted build leaves no mount and no process."""
    store = cache / "buildah"
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    folders = [f"--root={store / 'storage'}", f"--runroot={store / 'run'}"]
    return [*private, "buildah", *folders, "--storage-driver=overlay"]


def _run_visibly(argv: list[str]) -> None:
    try:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=_BUILD_SECONDS)
    except subprocess.TimeoutExpired as expired:
        raise ClusterError(f"building the image: not finished after {_BUILD_SECONDS} s") from expired
    except (subprocess.CalledProcessError, OSError) as error:
        raise ClusterError(f"building the image failed: {error}") from error


def in_store(cache: Path, tag: str) -> bool:
    """Whether buildah's storage holds this image, as a base for others."""
    return succeeds([*_buildah(cache), "inspect", "--type=image", tag], deadline_seconds=30)

"""The images of a cluster without a container engine: pause, CoreDNS, Prometheus, and a base for all others."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster import images, programs
from localcluster.commands import say
from localcluster.errors import ClusterError
from localcluster.settings import BASE_IMAGE, COREDNS_IMAGE, IMAGE_RECIPES, PAUSE_IMAGE, PROMETHEUS_IMAGE

_BASE_SECONDS = 1800


@dataclass(frozen=True)
class Archives:
    """What every node gets before its first pod."""

    paths: tuple[Path, ...]


def provide(cache: Path) -> Archives:
    """Builds whatever of them is missing or out of date."""
    archives = []
    for tag, name in ((PAUSE_IMAGE, "pause"), (COREDNS_IMAGE, "coredns"), (PROMETHEUS_IMAGE, "prometheus")):
        context = cache / "contexts" / name
        _stage(programs.built_folder(cache) / name, context)
        request = images.Request(tag, IMAGE_RECIPES / name / "Dockerfile", context)
        archives.append(images.build(request, cache, None).archive)
    return Archives(tuple(archives))


def _stage(program: Path, context: Path) -> None:
    """A context holding one program: a link where the file system allows it, so that nothing is copied."""
    context.mkdir(parents=True, exist_ok=True)
    target = context / program.name
    if target.is_file() and target.samefile(program):
        return
    target.unlink(missing_ok=True)
    try:
        os.link(program, target)
    except OSError:
        shutil.copy2(program, target)


def provide_base(cache: Path) -> str:
    """Debian with Python, as a stand-in for python:3.11-slim; made from Debian's packages once.

    Returns a key that changes when images on top of it must be built again.
    """
    recipe = IMAGE_RECIPES / "base"
    key = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(recipe.iterdir()))).hexdigest()
    key_file = cache / "images" / "base-root.key"
    root = cache / "base" / "base.tar"
    if not (root.is_file() and key_file.is_file() and key_file.read_text() == key):
        say("  making the base image from Debian packages, once; this takes two to four minutes")
        for folder in (root.parent, key_file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        key_file.unlink(missing_ok=True)
        _run_recipe(recipe / "root.sh", root)
        key_file.write_text(key)
    request = images.Request(BASE_IMAGE, recipe / "Dockerfile", root.parent)
    images.build(request, cache, None, again=not images.in_store(cache, BASE_IMAGE))
    return key


def _run_recipe(recipe: Path, target: Path) -> None:
    try:
        subprocess.run([str(recipe), str(target)], check=True, stdin=subprocess.DEVNULL, timeout=_BASE_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        raise ClusterError(f"making the base image failed, see above: {error}") from error

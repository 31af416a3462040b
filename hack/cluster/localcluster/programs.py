"""Finds the cluster's programs: on PATH or in KUBEBUILDER_ASSETS, else built once from pinned Go modules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.commands import CommandError, run, say
from localcluster.errors import ClusterError
from localcluster.settings import TOOLS

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_OTHERS = ("etcd", "helm")
CLIENTS = ("kubectl", "helm")
# Go into images, so they must be static; only our own build is known to be.
IN_IMAGES = ("coredns", "pause", "prometheus")

# kube-proxy's nftables mode is stable, and the kubelet still runs on cgroup v1 when told to, from here on.
_OLDEST_MINOR = 33
_BUILD_SECONDS = 3600


@dataclass(frozen=True)
class Program:
    """A program and where it was found or built."""

    name: str
    path: Path


def built_folder(cache: Path) -> Path:
    """Where the programs built from Go modules are kept."""
    return cache / "bin"


def prepare(cache: Path) -> tuple[Program, ...]:
    """Everything a cluster runs or its user needs; builds what is nowhere to be found.

    Raises ClusterError when something must be built and can't be.
    """
    found = {program.name: program for program in (*_find_kubernetes(cache), *_find(cache, _OTHERS))}
    missing = [name for name in (*KUBERNETES, *_OTHERS) if name not in found]
    build(cache, (*missing, *IN_IMAGES))
    return (*found.values(), *(Program(name, built_folder(cache) / name) for name in missing))


def prepare_clients(cache: Path) -> tuple[Program, ...]:
    """What the user of a cluster needs when something else runs it."""
    found = _find(cache, CLIENTS)
    missing = set(CLIENTS) - {program.name for program in found}
    if missing:
        build(cache, tuple(missing))
    return (*found, *(Program(name, built_folder(cache) / name) for name in missing))


def link(programs: Sequence[Program], folder: Path) -> None:
    """Makes the programs appear in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        (folder / program.name).unlink(missing_ok=True)
        (folder / program.name).symlink_to(program.path)


def _find(cache: Path, names: Sequence[str]) -> tuple[Program, ...]:
    """Those that are in KUBEBUILDER_ASSETS or on PATH. Our own builds don't count: they may be out of date."""
    places = [os.environ.get("KUBEBUILDER_ASSETS", ""), *os.environ.get("PATH", "").split(os.pathsep)]
    search = os.pathsep.join(place for place in places if place and Path(place) != built_folder(cache))
    paths = [(name, shutil.which(name, path=search)) for name in names]
    return tuple(Program(name, Path(path)) for name, path in paths if path)


def _find_kubernetes(cache: Path) -> tuple[Program, ...]:
    """The whole set or nothing: parts of different releases don't always understand each other."""
    found = _find(cache, KUBERNETES)
    if len(found) < len(KUBERNETES):
        return ()
    minors = {_minor_version(program.path) for program in found}
    if len(minors) > 1 or min(minors) < _OLDEST_MINOR:
        versions = ", ".join(f"1.{minor}" for minor in sorted(minors))
        say(f"  not used: Kubernetes {versions} on PATH (wanted: one release, 1.{_OLDEST_MINOR} or newer)")
        return ()
    return found


def _minor_version(path: Path) -> int:
    flags = ["version", "--client"] if path.name == "kubectl" else ["--version"]
    try:
        match = re.search(r"v1\.(\d+)\.", run([str(path), *flags], deadline_seconds=20))
    except CommandError:
        return 0
    return int(match.group(1)) if match else 0


def build(cache: Path, names: tuple[str, ...]) -> None:
    """Builds what the cache lacks, printing progress. A cache that is complete needs no compiler."""
    argv = [str(TOOLS / "build.sh"), str(built_folder(cache)), *names]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=_BUILD_SECONDS)
    except subprocess.TimeoutExpired as expired:
        raise ClusterError(f"building {', '.join(names)}: not finished after {_BUILD_SECONDS} s") from expired
    if done.returncode != 0:
        advice = "" if shutil.which("go") else "\nInstall Go 1.21 or newer, or put the programs on PATH."
        raise ClusterError(f"building the cluster's programs failed, see above{advice}")

"""Debian packages: what the cluster needs installed, and a Prometheus that is only unpacked."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from localcluster.commands import CommandError, run, say, succeeds
from localcluster.errors import ClusterError

PACKAGES = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "nftables",
    "iproute2",
    "buildah",
    "mmdebstrap",
    "openssl",
    "ca-certificates",
)
_APT_SECONDS = 900
_POLICY = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    """The needed packages that aren't installed."""
    return [name for name in PACKAGES if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        status = run(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", name])
    except CommandError:
        return False
    return status.startswith("ii")


def install() -> None:
    """Installs what is missing and starts none of its services. Raises ClusterError without apt or root."""
    absent = missing()
    if not absent:
        say("all packages are installed: " + " ".join(PACKAGES))
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"needs apt-get (Debian, Ubuntu) to install: {' '.join(absent)}")
    if os.geteuid() != 0:
        raise ClusterError(f"run this as root to install: {' '.join(absent)}")
    say(f"installing {' '.join(absent)}")
    _apt("update")
    with _services_not_started():
        _apt("install", "--yes", "--no-install-recommends", *absent)


def _apt(*arguments: str) -> None:
    argv = ["apt-get", "--quiet", *arguments]
    say(f"  {' '.join(argv)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, env=environment, timeout=_APT_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{error}; its output is above") from error


@contextlib.contextmanager
def _services_not_started() -> Iterator[None]:
    """Packages ask this file before they start a service; exit code 101 means no."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def unpacked_prometheus(cache: Path) -> Path:
    """Debian's Prometheus, unpacked in the cache: no service, no user, nothing registered. Returns the program.

    It can't find pods through the API (Debian builds it without), so it is for tests outside of a cluster.
    """
    folder = cache / "prometheus"
    program = folder / "usr/bin/prometheus"
    if program.is_file():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".prometheus-") as temporary:
        if not succeeds(["apt-cache", "show", "prometheus"]):
            _apt("update")
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
        run(download, directory=Path(temporary), deadline_seconds=300)
        unpacked = Path(temporary) / "unpacked"
        package = next(Path(temporary).glob("prometheus_*.deb"))
        run(["dpkg", "--extract", str(package), str(unpacked)], deadline_seconds=120)
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return program

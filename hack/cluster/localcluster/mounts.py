"""What the cluster's processes see differently from the host: their own /run, /var/lib, /opt, and no host settings.

All of it is mounted in private mount namespaces, so it is gone with their last process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from localcluster.commands import run
from localcluster.settings import CLUSTER_DOMAIN, DNS_ADDRESS, ENGINE_ENV_ON_NODE, Cluster, Node

# Short, because socket paths below them may have 107 characters at most.
NODE_STATE = Path("/run/node")
_CACHE = Path("/run/cache")
_UPPER = Path("/run/overlay")
KUBELET_ROOT = Path("/var/lib/kubelet")
CONTAINERD_ROOT = Path("/var/lib/containerd")

# Folders in which a node makes files; an overlay keeps them away from the host.
_OVERLAID = (Path("/var/lib"), Path("/var/log"), Path("/opt"))

# The kubelet sets these for the whole machine unless it finds them set.
_KUBELET_SYSCTLS = (
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
)


def _mount(*arguments: str) -> None:
    run(["mount", *arguments], deadline_seconds=20)


def _bind(source: Path, target: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    _mount("--bind", str(source), str(target))


def set_up_root(cluster: Cluster) -> None:
    """Lets commands that enter the cluster resolve its Services' names."""
    resolver = cluster.state / "resolv.conf"
    resolver.write_text(
        f"nameserver {DNS_ADDRESS}\nsearch svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\noptions ndots:5 timeout:2\n"
    )
    if Path("/etc/resolv.conf").exists():
        _mount("--bind", str(resolver), "/etc/resolv.conf")


def set_up_node(cluster: Cluster, node: Node) -> None:
    """The node's own file system view; the host's folders shine through where the node has nothing of its own."""
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    # First of all: the cache itself may lie in one of the folders that are covered below.
    _bind(cluster.node_state(node), NODE_STATE)
    _bind(cluster.cache, _CACHE)
    _mount("-o", "remount,bind,ro", str(_CACHE))
    for folder in _OVERLAID:
        if folder.is_dir():
            _overlay(folder)
    _bind(NODE_STATE / "kubelet", KUBELET_ROOT)
    _bind(NODE_STATE / "containerd", CONTAINERD_ROOT)
    _bind(NODE_STATE / "pod-logs", Path("/var/log/pods"))
    # A link rather than a mount: the packages may be put there, or replaced, after the node has started.
    with contextlib.suppress(FileExistsError):
        ENGINE_ENV_ON_NODE.symlink_to(_CACHE / cluster.engine_env.relative_to(cluster.cache))
    _pretend_sysctls()
    _mount("--make-rshared", "/")


def _overlay(folder: Path) -> None:
    upper = _UPPER / str(folder).strip("/").replace("/", "-")
    work = upper.with_name(upper.name + ".work")
    for made in (upper, work):
        made.mkdir(parents=True)
    _mount("-t", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", "overlay", str(folder))


def _pretend_sysctls() -> None:
    """Shows the kubelet the kernel settings it wants, without changing the machine's."""
    shown = Path("/run/sysctl")
    for name, value in _KUBELET_SYSCTLS:
        real = Path("/proc/sys") / name
        if real.exists():
            file = shown / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
            _mount("--bind", str(file), str(real))

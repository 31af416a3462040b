"""The cluster's own control groups: who belongs to it, and nothing of them left afterwards.

`/sglang-cluster/NAME/system` holds the cluster's own processes, `/sglang-cluster/NAME/NODE` is the root under which
that node's kubelet puts its pods. On cgroup v1 this path exists in every hierarchy, on v2 in the only one.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.settings import NODES, Cluster, Node

_MOUNTS = Path("/sys/fs/cgroup")
_TOP = "sglang-cluster"
_SYSTEM = "system"
# The CPU hierarchy is left out: the control plane shall not share one weight with everything the pods do.
_JOINED_V1 = ("memory", "pids")
# A group counts as one competitor among the machine's processes; without a greater weight all pods together get as much
# CPU as one compiler.
_CPU_SHARES_V1 = 8192


@dataclass(frozen=True)
class _Hierarchy:
    """`controllers` is empty for the hierarchy of cgroup v2, which tells them by a file of its own."""

    mount: Path
    controllers: tuple[str, ...]


def _hierarchies() -> list[_Hierarchy]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = Path(fields.split()[4])
        filesystem, _, options = rest.split()[:3]
        # Containers of others may show the same hierarchies again elsewhere.
        if _MOUNTS not in (mount, *mount.parents):
            continue
        if filesystem == "cgroup":
            found.append(_Hierarchy(mount, tuple(options.split(","))))
        elif filesystem == "cgroup2":
            found.append(_Hierarchy(mount, ()))
    return found


def _only_v2() -> bool:
    return all(not hierarchy.controllers for hierarchy in _hierarchies())


def node_path(cluster: Cluster, node: Node) -> str:
    """The kubelet's `cgroupRoot`."""
    return f"/{_TOP}/{cluster.name}/{node.name}"


def create(cluster: Cluster) -> None:
    """Makes the cluster's groups in every hierarchy."""
    for hierarchy in _hierarchies():
        top = hierarchy.mount / _TOP
        for group in (top, top / cluster.name, *(top / cluster.name / node.name for node in NODES)):
            _make(group, hierarchy)
        _make(top / cluster.name / _SYSTEM, hierarchy)


def _make(group: Path, hierarchy: _Hierarchy) -> None:
    if _only_v2():
        # The kubelet wants to find every controller in the group that it is given.
        controllers = (group.parent / "cgroup.controllers").read_text().split()
        (group.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    group.mkdir(exist_ok=True)
    if "cpuset" in hierarchy.controllers:
        # A new v1 cpuset is empty, and no process can enter it until it has CPUs and memory nodes.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if not (group / setting).read_text().strip():
                (group / setting).write_text((group.parent / setting).read_text())
    if "cpu" in hierarchy.controllers and group.name == _TOP:
        (group / "cpu.shares").write_text(str(_CPU_SHARES_V1))


def join(cluster: Cluster) -> None:
    """Moves the calling process, and so all that it starts, into the cluster's own group."""
    only_v2 = _only_v2()
    for hierarchy in _hierarchies():
        if only_v2 or any(name in _JOINED_V1 for name in hierarchy.controllers):
            procs = hierarchy.mount / _TOP / cluster.name / _SYSTEM / "cgroup.procs"
            procs.write_text(str(os.getpid()))


def processes(cluster: Cluster) -> set[int]:
    """Every process of the cluster, pods included, by its id in the caller's namespace."""
    found: set[int] = set()
    for hierarchy in _hierarchies():
        for procs in (hierarchy.mount / _TOP / cluster.name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in procs.read_text().split())
    return found - {0}


def leftovers(cluster: Cluster) -> list[Path]:
    """The cluster's groups that still exist."""
    tops = [hierarchy.mount / _TOP / cluster.name for hierarchy in _hierarchies()]
    return [top for top in tops if top.exists()]


def remove(cluster: Cluster, *, deadline_seconds: float = 10) -> None:
    """Removes the cluster's groups, deepest first. Raises ClusterError when one stays in use."""
    end = time.monotonic() + deadline_seconds
    while remaining := leftovers(cluster):
        for top in remaining:
            _remove_tree(top)
        if time.monotonic() > end:
            raise ClusterError(f"control groups still in use: {', '.join(map(str, remaining))}")
        time.sleep(0.05)
    for hierarchy in _hierarchies():
        # Another cluster may still be below it.
        with contextlib.suppress(OSError):
            (hierarchy.mount / _TOP).rmdir()


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        # A group stays busy for a moment after its last process ended.
        with contextlib.suppress(OSError):
            Path(folder).rmdir()

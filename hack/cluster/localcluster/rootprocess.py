"""The one process whose end ends the cluster: started in namespaces of its own, found again, entered, ended.

It is the first process of a process-id namespace, so the kernel ends everything of the cluster with it, and with the
last process go the mounts, the network devices and the firewall rules.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster import cgroups
from localcluster.commands import tail, wait_until
from localcluster.errors import ClusterError
from localcluster.settings import ENTRY, Cluster


@dataclass(frozen=True)
class RootProcess:
    """A process that can't be mistaken for a later one with the same id: by its start time and the machine's boot."""

    pid: int
    start_ticks: int
    boot: str
    pid_namespace: int

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == _boot() and _start_ticks(self.pid) == self.start_ticks


def _record(cluster: Cluster) -> Path:
    return cluster.state / "root.json"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks(pid: int) -> int | None:
    fields = _stat_after_name(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def _stat_after_name(pid: int) -> list[str]:
    # The name, in parentheses, may hold spaces and parentheses of its own.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _only_child(parent: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_after_name(int(entry.name))
            if fields and int(fields[1]) == parent:
                return int(entry.name)
    return None


def find(cluster: Cluster) -> RootProcess | None:
    """The cluster's first process as recorded, or None when nothing (readable) is recorded. It may have ended."""
    try:
        return RootProcess(**json.loads(_record(cluster).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def inside(root: RootProcess) -> bool:
    """Whether the caller already runs in the cluster's namespaces."""
    return Path("/proc/self/ns/pid").stat().st_ino == root.pid_namespace


def start(cluster: Cluster) -> RootProcess:
    """Starts the first process and records it. Raises ClusterError, with its log, when it doesn't come up."""
    log = cluster.logs / "root.log"
    argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    argv += [sys.executable, str(ENTRY), "supervise", "--name", cluster.name]
    environment = {**os.environ, "SGLANG_DEV_CACHE": str(cluster.cache)}
    with log.open("ab") as output:
        outer = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=environment,
        )
    found: list[int] = []

    def forked() -> bool:
        child = _only_child(outer.pid)
        if child is not None:
            found.append(child)
        return bool(found) or outer.poll() is not None

    wait_until(forked, deadline_seconds=10, what="the cluster's first process", pause_seconds=0.02)
    ticks = _start_ticks(found[0]) if found else None
    if ticks is None:
        raise ClusterError(f"the cluster's first process ended at once\n{tail(log)}")
    root = RootProcess(found[0], ticks, _boot(), Path(f"/proc/{found[0]}/ns/pid").stat().st_ino)
    _record(cluster).write_text(json.dumps(asdict(root)))
    return root


def enter_argv(root: RootProcess) -> list[str]:
    """The command prefix that runs a program in the cluster's namespaces.

    The program gets SIGTERM when the process that entered ends, so that an interrupted command leaves nothing running.
    """
    if inside(root):
        return []
    return ["nsenter", f"--target={root.pid}", "--net", "--mount", "--pid", "--", "setpriv", "--pdeathsig=TERM"]


def end(cluster: Cluster) -> None:
    """Ends the cluster's first process, and waits until every process of the cluster is gone.

    Raises ClusterError when one stays (a process the kernel can't end, such as one in a hanging device call).
    """
    root = find(cluster)
    if root is not None and root.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(root.pid, signal.SIGKILL)
        wait_until(lambda: not root.alive(), deadline_seconds=20, what=f"end of the cluster's first process {root.pid}")
    # Without a record (an `up` that was killed right after its start) the groups still tell who belongs to the cluster.
    for pid in cgroups.processes(cluster):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not cgroups.processes(cluster), deadline_seconds=20, what="end of the cluster's processes")

"""Waiting for components, and telling what their logs say when they don't come up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import controlplane, nodeagents, rootprocess
from localcluster.commands import tail
from localcluster.errors import ClusterError
from localcluster.settings import Cluster, Node
from localcluster.supervisor import ends_recorded

# A component that ended this often while it was waited for won't come up by waiting longer.
_HOPELESS_ENDS = 5
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Watched:
    """A component under a supervisor: where its ends are counted, and its log."""

    name: str
    run_folder: Path
    log: Path

    def ends(self) -> int:
        """How often it has ended so far."""
        return ends_recorded(self.run_folder, self.name)


def control_plane(cluster: Cluster) -> tuple[Watched, ...]:
    """The components that `up` waits for first."""
    return tuple(Watched(name, cluster.run, cluster.logs / f"{name}.log") for name in controlplane.NAMES)


def node(cluster: Cluster, spec: Node) -> tuple[Watched, ...]:
    """The node's machine process first, then its agents."""
    agents = (
        Watched(name, nodeagents.run_folder(cluster, spec), nodeagents.log_folder(cluster, spec) / f"{name}.log")
        for name in nodeagents.NAMES
    )
    return (Watched(spec.name, cluster.run, cluster.logs / f"{spec.name}.log"), *agents)


def wait_for(
    cluster: Cluster, what: str, condition: Callable[[], bool], components: Sequence[Watched], deadline_seconds: float
) -> None:
    """Returns as soon as the condition holds.

    Raises ClusterError, with the ends of the logs that matter, at the deadline or as soon as waiting is hopeless.
    """
    end = time.monotonic() + deadline_seconds
    while not condition():
        root = rootprocess.find(cluster)
        if root is None or not root.alive():
            raise ClusterError(f"{what}: the cluster's first process ended\n{tail(cluster.logs / 'root.log')}")
        failing = [component for component in components if component.ends() >= _HOPELESS_ENDS]
        if failing:
            raise ClusterError(f"{what}: {failing[0].name} doesn't stay up\n{tail(failing[0].log)}")
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {deadline_seconds:.0f} s\n{_logs(components)}")
        time.sleep(_PAUSE_SECONDS)


def _logs(components: Sequence[Watched]) -> str:
    ended = [component for component in components if component.ends()]
    return "\n".join(tail(component.log) for component in ended or components)

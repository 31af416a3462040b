"""The first processes of the cluster and of each node: they prepare their namespaces, then supervise."""

from __future__ import annotations

import socket

from localcluster import cgroups, controlplane, mounts, network, nodeagents
from localcluster.settings import NODES, Cluster, Node
from localcluster.supervisor import supervise


def run_cluster(cluster: Cluster) -> None:
    """Never returns."""
    cgroups.join(cluster)
    network.set_up_root()
    mounts.set_up_root(cluster)
    machines = [nodeagents.machine(cluster, node) for node in NODES]
    supervise([*controlplane.components(cluster), *machines], cluster.run)


def run_node(cluster: Cluster, node: Node) -> None:
    """Never returns."""
    socket.sethostname(node.name)
    network.set_up_node(node)
    run_folder = nodeagents.run_folder(cluster, node)
    run_folder.mkdir(parents=True, exist_ok=True)
    mounts.set_up_node(cluster, node)
    supervise(nodeagents.components(cluster, node), run_folder)

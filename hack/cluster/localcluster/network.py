"""The cluster's cables: one bridge, one cable per node, routes to the pods' subnets and to the Services.

Nothing leads out of the cluster's namespaces, and nothing in: the host's addresses and firewall stay as they are.
"""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path

from localcluster.commands import CommandError, run, wait_until
from localcluster.settings import API_ADDRESS, BRIDGE, CLUSTER_SUBNET_BITS, NODES, SERVICE_SUBNET, Node

NODE_DEVICE = "eth0"
_SYSCTL = Path("/proc/sys/net")


def _ip(*lines: str) -> None:
    run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", deadline_seconds=20)


def set_up_root() -> None:
    """The control plane's end: the bridge with the API server's address, and routes through the nodes."""
    _ip(
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {API_ADDRESS}/{CLUSTER_SUBNET_BITS} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        *(f"route add {node.pod_subnet} via {node.address}" for node in NODES),
        # kube-proxy runs on the nodes; going through the first one makes Services reachable from here too.
        f"route add {SERVICE_SUBNET} via {NODES[0].address}",
    )
    (_SYSCTL / "ipv4/ip_forward").write_text("1")


def connect_node(node: Node, pid: int) -> None:
    """Plugs a node's cable into the bridge once the node's process has a network namespace of its own."""
    own = Path("/proc/self/ns/net").stat().st_ino
    wait_until(
        lambda: Path(f"/proc/{pid}/ns/net").stat().st_ino != own,
        deadline_seconds=10,
        what=f"network namespace of {node.name}",
        pause_seconds=0.02,
    )
    # A node that ended leaves its end of the cable behind for a moment.
    with contextlib.suppress(CommandError):
        run(["ip", "link", "del", node.link])
    _ip(
        f"link add {node.link} type veth peer name {NODE_DEVICE} netns {pid}",
        f"link set {node.link} master {BRIDGE}",
        f"link set {node.link} up",
    )


def set_up_node(node: Node) -> None:
    """The node's end: its address, and the way to the other node's pods."""
    wait_until(
        _device_exists,
        deadline_seconds=20,
        what=f"cable of {node.name}",
        pause_seconds=0.02,
    )
    _ip(
        "link set lo up",
        f"addr add {node.address}/{CLUSTER_SUBNET_BITS} dev {NODE_DEVICE}",
        f"link set {NODE_DEVICE} up",
        f"route add default via {API_ADDRESS}",
        *(f"route add {other.pod_subnet} via {other.address}" for other in NODES if other != node),
    )
    (_SYSCTL / "ipv4/ip_forward").write_text("1")


def _device_exists() -> bool:
    # /sys shows the devices of the namespace it was mounted from; /proc/net those of the reader's own.
    return any(line.strip().startswith(f"{NODE_DEVICE}:") for line in Path("/proc/net/dev").read_text().splitlines())


def cni_config(node: Node) -> str:
    """One routed cable per pod. Without a bridge between pods of a node, replies to a Service's client always pass the
    node's address translation, whatever the kernel's bridge filter settings are.
    """
    network = ipaddress.ip_network(node.pod_subnet)
    return f"""{{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {{
      "type": "ptp",
      "ipMasq": false,
      "ipam": {{
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{{"subnet": "{network}"}}]],
        "routes": [{{"dst": "0.0.0.0/0"}}]
      }}
    }}
  ]
}}
"""

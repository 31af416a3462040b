"""What runs on a node: containerd, kubelet, kube-proxy, each with configuration of its own."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from localcluster import cgroups, mounts, network
from localcluster.commands import run
from localcluster.settings import (
    CLUSTER_DOMAIN,
    DNS_ADDRESS,
    ENTRY,
    PAUSE_IMAGE,
    POD_SUBNET,
    Cluster,
    Node,
)
from localcluster.supervisor import Component

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_PLUGINS = Path("/usr/lib/cni")
NAMES = ("containerd", "kubelet", "kube-proxy")


def log_folder(cluster: Cluster, node: Node) -> Path:
    """Where the node's agents log."""
    return cluster.logs / node.name


def run_folder(cluster: Cluster, node: Node) -> Path:
    """Where the node's supervisor notes process ids and ends."""
    return cluster.run / node.name


def machine(cluster: Cluster, node: Node) -> Component:
    """The node itself, as the control plane's first process starts it: a process in namespaces of its own."""
    argv = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
    return Component(
        name=node.name,
        argv=(*argv, sys.executable, str(ENTRY), "supervise", "--name", cluster.name, "--node", node.name),
        log=cluster.logs / f"{node.name}.log",
        given_up=cluster.node_given_up(node).exists,
        started=lambda pid: network.connect_node(node, pid),
    )


def components(cluster: Cluster, node: Node) -> tuple[Component, ...]:
    """The agents, for the node's own first process. Writes their configuration."""
    configuration = mounts.NODE_STATE / "config"
    for name, text in (
        ("cni/10-pods.conflist", network.cni_config(node)),
        ("containerd.toml", _containerd_config(configuration)),
        ("kubelet.yaml", _kubelet_config(cluster, node)),
    ):
        (configuration / name).parent.mkdir(parents=True, exist_ok=True)
        (configuration / name).write_text(text)
    logs = log_folder(cluster, node)
    return (
        Component(
            "containerd", ("containerd", f"--config={configuration / 'containerd.toml'}"), logs / "containerd.log"
        ),
        Component(
            "kubelet",
            (cluster.program("kubelet"), *_kubelet_flags(cluster, node, configuration)),
            logs / "kubelet.log",
            may_start=_containerd_answers,
        ),
        Component("kube-proxy", (cluster.program("kube-proxy"), *_proxy_flags(cluster, node)), logs / "kube-proxy.log"),
    )


def _containerd_answers() -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(CONTAINERD_SOCKET)
        except OSError:
            return False
    return True


def _containerd_config(configuration: Path) -> str:
    return f"""version = 2
root = "{mounts.CONTAINERD_ROOT}"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Inside a container or another restricted environment the kernel refuses lower scores than one's own.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{configuration / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{_snapshotter()}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def _snapshotter() -> str:
    # An overlay can't be stacked on an overlay, which is what a container's own file system usually is.
    below = run(["stat", "--file-system", "--format=%T", str(mounts.CONTAINERD_ROOT)]).strip()
    return "native" if below == "overlayfs" else "overlayfs"


def _kubelet_config(cluster: Cluster, node: Node) -> str:
    return f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  x509: {{clientCAFile: {cluster.pki / "ca.crt"}}}
  webhook: {{enabled: true}}
authorization: {{mode: Webhook}}
containerRuntimeEndpoint: unix://{CONTAINERD_SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: {cgroups.node_path(cluster, node)}
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDNS: [{DNS_ADDRESS}]
clusterDomain: {CLUSTER_DOMAIN}
# Pods that ask for the node's resolver get none: nothing outside the cluster can be reached anyway.
resolvConf: ""
volumePluginDir: {mounts.KUBELET_ROOT}/volume-plugins
makeIPTablesUtilChains: false
serializeImagePulls: false
# A developer's disk may well be fuller than a server's: neither evict for it nor delete images that can't be pulled
# again.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard:
  memory.available: 100Mi
  nodefs.available: 0%
  nodefs.inodesFree: 0%
  imagefs.available: 0%
"""


def _kubelet_flags(cluster: Cluster, node: Node, configuration: Path) -> tuple[str, ...]:
    return (
        f"--config={configuration / 'kubelet.yaml'}",
        f"--kubeconfig={cluster.pki / node.name}.kubeconfig",
        f"--root-dir={mounts.KUBELET_ROOT}",
        f"--cert-dir={mounts.KUBELET_ROOT}/pki",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    )


def _proxy_flags(cluster: Cluster, node: Node) -> tuple[str, ...]:
    return (
        f"--kubeconfig={cluster.pki / 'kube-proxy'}.kubeconfig",
        "--proxy-mode=nftables",
        f"--cluster-cidr={POD_SUBNET}",
        f"--hostname-override={node.name}",
        # These would be settings of the whole machine.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    )

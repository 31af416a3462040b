"""The cluster's vocabulary: names, addresses, folders, and what its GPU nodes claim to be.

Every cluster has network namespaces of its own, so all clusters use the same addresses.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[3]
ENTRY = REPOSITORY / "hack" / "cluster"
TOOLS = REPOSITORY / "hack" / "tools"
IMAGE_RECIPES = REPOSITORY / "hack" / "images"
MANIFESTS = ENTRY / "manifests"

DEFAULT_NAME = "sglang"
CLUSTER_DOMAIN = "cluster.local"

API_ADDRESS = "10.99.0.1"
API_PORT = 6443
CLUSTER_SUBNET_BITS = 24
POD_SUBNET = "10.88.0.0/16"
SERVICE_SUBNET = "10.96.0.0/16"
KUBERNETES_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
BRIDGE = "nodes"

BASE_IMAGE = "docker.io/sglang-operator/base:bookworm"
PAUSE_IMAGE = "docker.io/sglang-operator/pause:local"
COREDNS_IMAGE = "docker.io/sglang-operator/coredns:local"
PROMETHEUS_IMAGE = "docker.io/sglang-operator/prometheus:local"

ENGINE_ENV_ON_NODE = Path("/opt/sglang-engine-env")

GPUS_PER_NODE = 8
GPU_RESOURCE = "nvidia.com/gpu"
GPU_TAINT = "nvidia.com/gpu=present:NoSchedule"
# What GPU feature discovery writes for this card; memory is in MiB, as there.
GPU_LABELS = (
    ("nvidia.com/gpu.present", "true"),
    ("nvidia.com/gpu.product", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
    ("nvidia.com/gpu.family", "blackwell"),
    ("nvidia.com/gpu.count", str(GPUS_PER_NODE)),
    ("nvidia.com/gpu.memory", "97887"),
    ("nvidia.com/gpu.compute.major", "12"),
    ("nvidia.com/gpu.compute.minor", "0"),
)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True)
class Node:
    """One node: its address on the bridge, the subnet of its pods, and the bridge's end of its cable."""

    name: str
    address: str
    pod_subnet: str
    link: str


NODES = (
    Node("gpu-node-1", "10.99.0.11", "10.88.1.0/24", "to-node-1"),
    Node("gpu-node-2", "10.99.0.12", "10.88.2.0/24", "to-node-2"),
)


def cache_dir() -> Path:
    """The folder for everything that outlives a run, outside the checkout."""
    chosen = os.environ.get("SGLANG_DEV_CACHE")
    if chosen:
        return Path(chosen).absolute()
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache").absolute() / "sglang-operator"


@dataclass(frozen=True)
class Cluster:
    """A named cluster and the folders that belong to it.

    Raises ClusterError for a name that can't be part of a path, a cgroup and a kind cluster alike.
    """

    name: str
    cache: Path

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ClusterError(f"--name {self.name!r}: use lower-case letters, digits and inner dashes, 32 at most")

    @property
    def state(self) -> Path:
        """Everything of this cluster that must go with it."""
        return self.cache / "cluster" / self.name

    @property
    def lock(self) -> Path:
        """Held while the cluster is started or ended."""
        return self.cache / "cluster" / f".{self.name}.lock"

    @property
    def kubeconfig(self) -> Path:
        """The user's own kubeconfig, as an administrator."""
        return self.state / "kubeconfig"

    @property
    def bin(self) -> Path:
        """Links to the programs this cluster runs, wherever they were found."""
        return self.state / "bin"

    @property
    def pki(self) -> Path:
        """Keys, certificates, and the kubeconfigs of the components."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """One file per component, one folder per node."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """Process ids of the components, as the cluster's first process sees them."""
        return self.state / "run"

    @property
    def ready_mark(self) -> Path:
        """Exists once `up` went through to its end."""
        return self.state / "ready"

    @property
    def engine_env(self) -> Path:
        """Python packages that every node shows to its pods."""
        return self.cache / "engine-env"

    def program(self, name: str) -> str:
        """The path of one of the linked programs."""
        return str(self.bin / name)

    def node_state(self, node: Node) -> Path:
        """What this node keeps on disk."""
        return self.state / "nodes" / node.name

    def node_given_up(self, node: Node) -> Path:
        """Exists when this node couldn't be run here; its processes are then ended and not started again."""
        return self.node_state(node) / "given-up"


def node_named(name: str) -> Node:
    """Raises ClusterError for a node this cluster doesn't have."""
    for node in NODES:
        if node.name == name:
            return node
    raise ClusterError(f"node {name!r}: this cluster has {', '.join(node.name for node in NODES)}")

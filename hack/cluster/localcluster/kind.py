"""The same cluster by kind, where a container engine runs: kind's plain commands and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from localcluster import addons, programs
from localcluster.commands import phase, run
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.settings import ENGINE_ENV_ON_NODE, PROMETHEUS_IMAGE, Cluster

CONFIG = "kind.json"
_KIND_SECONDS = 900
_UPSTREAM_PROMETHEUS = "docker.io/prom/prometheus:v2.42.0"


def available() -> bool:
    """Whether kind is installed; a container engine that answers is the other half."""
    return shutil.which("kind") is not None


def kubectl(cluster: Cluster) -> Kubectl:
    """kind publishes the API server on the host, so nothing has to be entered."""
    return Kubectl((cluster.program("kubectl"), f"--kubeconfig={cluster.kubeconfig}"))


def running(cluster: Cluster) -> None:
    """Raises ClusterError when the cluster doesn't run."""
    if cluster.name not in run(["kind", "get", "clusters"], deadline_seconds=30).split():
        raise ClusterError(f"cluster {cluster.name!r} isn't running; start it by: python3 hack/cluster up")


def healthy(cluster: Cluster) -> bool:
    """Whether an `up` went through to its end, and API server and nodes are (still) well."""
    try:
        states = kubectl(cluster).nodes()
    except ClusterError:
        return False
    return cluster.ready_mark.exists() and bool(states) and all(state.ready for state in states)


def up(cluster: Cluster, engine: str) -> None:
    """Raises ClusterError with kind's own words."""
    if cluster.state.exists():
        with phase("clearing what an earlier cluster left"):
            down(cluster)
    cluster.state.mkdir(parents=True)
    cluster.engine_env.mkdir(parents=True, exist_ok=True)
    with phase("programs"):
        programs.link(programs.prepare_clients(cluster.cache), cluster.bin)
    config = cluster.state / CONFIG
    config.write_text(json.dumps(_config(cluster)))
    with phase("kind"):
        create = ["kind", "create", "cluster", f"--name={cluster.name}", f"--config={config}", "--wait=180s"]
        run([*create, f"--kubeconfig={cluster.kubeconfig}"], deadline_seconds=_KIND_SECONDS)
    client = kubectl(cluster)
    with phase("GPU nodes"):
        for node in client.nodes():
            if "control-plane" not in node.name:
                addons.make_gpu_node(client, node.name)
    with phase("Prometheus"):
        run([engine, "pull", _UPSTREAM_PROMETHEUS], deadline_seconds=_KIND_SECONDS)
        run([engine, "tag", _UPSTREAM_PROMETHEUS, PROMETHEUS_IMAGE])
        run(["kind", "load", "docker-image", f"--name={cluster.name}", PROMETHEUS_IMAGE], deadline_seconds=300)
        addons.apply(client, "prometheus.yaml")
        addons.wait_for_deployment(client, "monitoring", "prometheus")
    cluster.ready_mark.touch()


def _config(cluster: Cluster) -> dict[str, object]:
    mount = {"hostPath": str(cluster.engine_env), "containerPath": str(ENGINE_ENV_ON_NODE), "readOnly": True}
    worker = {"role": "worker", "extraMounts": [mount]}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, worker, worker],
    }


def load(cluster: Cluster, archives: Sequence[Path]) -> None:
    """Loads image archives into every node. Raises ClusterError with kind's own words."""
    running(cluster)
    for archive in archives:
        argv = ["kind", "load", "image-archive", f"--name={cluster.name}", str(archive)]
        run(argv, deadline_seconds=_KIND_SECONDS)


def down(cluster: Cluster) -> None:
    """Deletes the cluster and its state."""
    run(["kind", "delete", "cluster", f"--name={cluster.name}"], deadline_seconds=_KIND_SECONDS)
    shutil.rmtree(cluster.state, ignore_errors=True)

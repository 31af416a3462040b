"""What makes nodes GPU nodes, and the system's own workloads; the same commands whichever way the cluster runs."""

from __future__ import annotations

import json

from localcluster.commands import CommandError
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.settings import GPU_LABELS, GPU_RESOURCE, GPU_TAINT, GPUS_PER_NODE, MANIFESTS

_ROLLOUT_SECONDS = 120


def make_gpu_node(kubectl: Kubectl, node: str) -> None:
    """Labels and taint as on a real GPU node, and GPUs that exist in the node's status alone.

    The kubelet keeps resources that it doesn't manage itself, also over its restarts.
    """
    labels = [f"{name}={value}" for name, value in GPU_LABELS]
    kubectl.run("label", "node", node, "--overwrite", *labels)
    kubectl.run("taint", "node", node, "--overwrite", GPU_TAINT)
    gpus = {GPU_RESOURCE: str(GPUS_PER_NODE)}
    patch = json.dumps({"status": {"capacity": gpus, "allocatable": gpus}})
    kubectl.run("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")


def apply(kubectl: Kubectl, manifest: str) -> None:
    """Applies a file of the manifests folder."""
    kubectl.run("apply", "--filename=-", stdin=(MANIFESTS / manifest).read_text())


def wait_for_deployment(kubectl: Kubectl, namespace: str, name: str) -> None:
    """Raises ClusterError with the namespace's pods and events when it isn't available in time."""
    try:
        kubectl.run(
            "rollout",
            "status",
            f"--namespace={namespace}",
            f"deployment/{name}",
            f"--timeout={_ROLLOUT_SECONDS}s",
            deadline_seconds=_ROLLOUT_SECONDS + 10,
        )
    except CommandError as error:
        story = _what_happened(kubectl, namespace, name)
        raise ClusterError(f"{namespace}/{name} didn't become available\n{story}") from error


def _what_happened(kubectl: Kubectl, namespace: str, deployment: str) -> str:
    told = []
    for arguments in (
        ("get", "pods", "--output=wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", f"deployment/{deployment}", "--tail=12"),
    ):
        try:
            told.append(kubectl.run(*arguments, f"--namespace={namespace}"))
        except CommandError as error:
            told.append(str(error))
    return "\n".join("\n".join(text.splitlines()[-12:]) for text in told)

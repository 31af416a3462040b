"""Pods and Deployments as the API server shows them: field names, reasons and messages are Kubernetes' own.

Each function returns a pod at one stage of its life; messages are as written by Kubernetes 1.29 to 1.37 and containerd.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
IMAGE = "docker.io/lmsysorg/sglang:v0.5.23"
BUDGET_SECONDS = 3600


def ago(**parts: float) -> str:
    """Kubernetes' spelling of a time before `NOW`; parts as for `timedelta`."""
    return (NOW - timedelta(**parts)).strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str = "PodInitializing", message: str = "") -> Manifest:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running(**since: float) -> Manifest:
    return {"running": {"startedAt": ago(**(since or {"minutes": 1}))}}


def terminated(
    exit_code: int, reason: str = "Error", message: str = "", *, ran_seconds: float = 20, ended_seconds_ago: float = 5
) -> Manifest:
    ended: Manifest = {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": ago(seconds=ended_seconds_ago + ran_seconds),
        "finishedAt": ago(seconds=ended_seconds_ago),
        "containerID": "containerd://1f0b",
    }
    return {"terminated": {**ended, **({"message": message} if message else {})}}


def crash_back_off(container: str, pod_name: str, seconds: str = "40s") -> Manifest:
    return waiting(
        "CrashLoopBackOff", f"back-off {seconds} restarting failed container={container} pod={pod_name}_default(4c1e)"
    )


def container(
    state: Manifest, *, last: Manifest | None = None, restarts: int = 0, ready: bool = False, started: bool = False
) -> Manifest:
    """What the kubelet says about one container, without its name."""
    return {
        "state": state,
        "lastState": last or {},
        "restartCount": restarts,
        "ready": ready,
        "started": started,
        "image": IMAGE,
        "imageID": "",
    }


def patch_json(**changes: object) -> str:
    """The patch container's own word on a success, with changes."""
    word: dict[str, object] = {
        "result": "Patched",
        "reason": "Patched",
        "message": "SGLang 0.5.23 is patched and its import was checked.",
        "release": "0.5.23",
        "path": "/usr/local/lib/python3.12/dist-packages/sglang",
        "generation": 1,
        "digest": "9b" * 32,
    }
    return json.dumps({**word, **changes}, ensure_ascii=False)


def patched(message: str | None = None) -> Manifest:
    """The patch container after a success."""
    state = terminated(0, "Completed", patch_json() if message is None else message)
    return {**container(state, ready=True), "started": False}


def pod(
    name: str = "demo-7d9f6c5b8-x2x4k",
    *,
    revision: str = "rev-a",
    patch: Manifest | None = None,
    engine: Manifest | None = None,
    scheduled: Manifest | None = None,
    ready: bool = False,
    ready_since: str | None = None,
    phase: str = "Pending",
    has_patch: bool = True,
    memory_limit: str | None = "512Gi",
    budget_seconds: int = BUDGET_SECONDS,
    status: Manifest | None = None,
) -> Manifest:
    """A pod of the service `demo`; `scheduled` None: the scheduler has put it on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": {names.LABEL_SERVICE: "demo"},
            "annotations": {names.ANNOTATION_REVISION: revision},
        },
        "spec": _pod_spec(has_patch=has_patch, memory_limit=memory_limit, budget_seconds=budget_seconds),
        "status": {
            "phase": phase,
            "podIP": "10.244.1.7",
            "conditions": _pod_conditions(scheduled, ready=ready, ready_since=ready_since),
            **({"initContainerStatuses": [{"name": "patch", **(patch or container(waiting()))}]} if has_patch else {}),
            "containerStatuses": [{"name": "engine", **(engine or container(waiting()))}],
            **(status or {}),
        },
    }


def _pod_spec(*, has_patch: bool, memory_limit: str | None, budget_seconds: int) -> Manifest:
    memory = {"memory": memory_limit} if memory_limit else {}
    patch = {"name": names.CONTAINER_PATCH, "image": IMAGE, "resources": {"limits": memory}}
    engine = {
        "name": names.CONTAINER_ENGINE,
        "image": IMAGE,
        "ports": [{"name": "http", "containerPort": 30_000}],
        "resources": {"limits": {**memory, "nvidia.com/gpu": "8"}},
        "startupProbe": {"periodSeconds": 10, "failureThreshold": -(-budget_seconds // 10)},
    }
    expressions = [
        {"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["7"]},
        {"key": "nvidia.com/gpu.compute.major", "operator": "In", "values": ["10", "12"]},
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {
        **({"initContainers": [patch]} if has_patch else {}),
        "containers": [engine],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "terminationGracePeriodSeconds": 60,
    }


def _pod_conditions(scheduled: Manifest | None, *, ready: bool, ready_since: str | None) -> list[Manifest]:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(minutes=2)}
    readiness: Manifest = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": ready_since or ago(minutes=1),
    }
    if not ready:
        readiness |= {"reason": "ContainersNotReady", "message": "containers with unready status: [engine]"}
    return [item for item in (placed if scheduled is None else scheduled, readiness) if item]


def unseen(name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a") -> Manifest:
    """Just created: no scheduler, no kubelet has spoken."""
    fresh = pod(name, revision=revision)
    return {**fresh, "status": {"phase": "Pending"}}


def unschedulable(
    message: str,
    name: str = "demo-7d9f6c5b8-x2x4k",
    *,
    revision: str = "rev-a",
    reason: str = "Unschedulable",
) -> Manifest:
    """The scheduler found no node; no kubelet has the pod, so there are no container statuses."""
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(minutes=2),
    }
    return {**pod(name, revision=revision), "status": {"phase": "Pending", "conditions": [said]}}


def creating(name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a", **changes: object) -> Manifest:
    """On a node; the kubelet mounts volumes and pulls the image."""
    return pod(name, revision=revision, **changes)  # type: ignore[arg-type]


def patching(name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a", **since: float) -> Manifest:
    return pod(name, revision=revision, patch=container(running(**since), started=True))


def refused(
    name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a", exit_code: int = 3, message: str | None = None
) -> Manifest:
    """The patch container failed and is paused before its next try."""
    word = (
        message
        if message is not None
        else patch_json(
            result="Refused",
            reason="UnsupportedSource",
            message="srt/server_args.py: found no place for the field (class ServerArgs). Use SGLang 0.5.14 or newer.",
        )
    )
    ended = terminated(exit_code, "Error", word)
    return pod(
        name,
        revision=revision,
        patch=container(crash_back_off("patch", name), last=ended, restarts=3),
    )


def loading(name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a", **since: float) -> Manifest:
    """Patched; the server loads its model and answers no probe."""
    engine = container(running(**since))
    return pod(name, revision=revision, patch=patched(), engine=engine, phase="Running")


def crashed(
    state: Manifest,
    *,
    last: Manifest | None = None,
    restarts: int = 0,
    name: str = "demo-7d9f6c5b8-x2x4k",
    revision: str = "rev-a",
    **changes: object,
) -> Manifest:
    """Patched; the server's container is in `state` after `restarts` restarts."""
    engine = container(state, last=last, restarts=restarts)
    return pod(
        name,
        revision=revision,
        patch=patched(),
        engine=engine,
        phase="Running",
        **changes,  # type: ignore[arg-type]
    )


def answering(
    name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a", restarts: int = 0, has_patch: bool = True
) -> Manifest:
    engine = container(running(minutes=30), ready=True, started=True, restarts=restarts)
    return pod(
        name,
        revision=revision,
        patch=patched() if has_patch else None,
        has_patch=has_patch,
        engine=engine,
        ready=True,
        phase="Running",
    )


def deleting(manifest: Manifest) -> Manifest:
    """The same pod after somebody asked for its deletion; it keeps its conditions until its end."""
    marked = {**manifest["metadata"], "deletionTimestamp": ago(seconds=3), "deletionGracePeriodSeconds": 60}
    return {**manifest, "metadata": marked}


def evicted(name: str = "demo-7d9f6c5b8-x2x4k", *, revision: str = "rev-a") -> Manifest:
    """Refused by its own node: the scheduler's and the device plugin's counts differed."""
    return {
        **pod(name, revision=revision),
        "status": {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
            "Requested: 8, Available: 7, which is unexpected",
            "startTime": ago(minutes=1),
        },
    }


def deployment(
    *,
    revision: str = "rev-a",
    replicas: int = 1,
    observed: bool = True,
    late: bool = False,
    failure: str = "",
) -> Manifest:
    """The Deployment of the service `demo`. `late`: past its deadline; `failure`: pods that can't be created."""
    progress: Manifest = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
    if late:
        progress = {
            "type": "Progressing",
            "status": "False",
            "reason": "ProgressDeadlineExceeded",
            "message": 'ReplicaSet "demo-7d9f6c5b8" has timed out progressing.',
        }
    refusal = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "namespace": "default", "generation": 4},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"annotations": {names.ANNOTATION_REVISION: revision}}},
        },
        "status": {
            "observedGeneration": 4 if observed else 3,
            "replicas": replicas,
            "updatedReplicas": replicas,
            "conditions": [progress, *([refusal] if failure else [])],
        },
    }

"""InferenceServices for tests on the local cluster: the demo's sample with differences, and how to look at one."""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

import deploy
from localcluster.client import RESOURCE, LocalCluster, conditions
from localcluster.eventually import eventually

Manifest = dict[str, Any]
SAMPLE = pathlib.Path(__file__).parents[2] / "manifests/samples/local-demo.yaml"
RELEASE = "0.5.23"
SERVICE_LABEL = "serving.sglang-operator.io/service"
START_SECONDS = 180


def manifest(name: str = "llama", *, gpus: int = 2, **changes: Any) -> Manifest:
    """The sample under another name, with GPUs for several on a node; `changes` are merged into the spec."""
    made: Manifest = yaml.safe_load(SAMPLE.read_text())
    made["metadata"] = {"name": name}
    made["spec"]["gpus"]["count"] = gpus
    # Nobody's requests are lost here: what takes time when a test ends is waiting for drained servers.
    made["spec"]["podTemplate"]["terminationGracePeriodSeconds"] = 1
    merge(made["spec"], changes)
    return made


def fixed(batch_size: int) -> Manifest:
    """Changes that fix the threshold."""
    return {"speculation": {"disableThreshold": {"mode": "Fixed", "batchSize": batch_size}}}


def merge(into: Manifest, changes: Mapping[str, Any]) -> None:
    """Merge maps deeply; everything else is replaced."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


@dataclass(frozen=True)
class Service:
    """One InferenceService on the cluster."""

    cluster: LocalCluster
    namespace: str
    name: str = "llama"

    def apply(self, made: Manifest) -> None:
        """Create or change it."""
        self.cluster.apply(made, namespace=self.namespace)

    def patch(self, spec: Manifest) -> None:
        """Merge changes into its spec."""
        body = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", RESOURCE, self.name, "-n", self.namespace, "--type=merge", "--patch", body)

    def get(self) -> Manifest:
        """The resource as stored."""
        return self.cluster.get(RESOURCE, self.name, "-n", self.namespace)

    def condition(self, kind: str) -> Manifest:
        """One condition; fails while there is none yet or it is about an older generation."""
        stored = self.get()
        found = conditions(stored)[kind]
        assert found["observedGeneration"] == stored["metadata"]["generation"], f"{kind} is about an older generation"
        return found

    def await_condition(self, kind: str, status: str, reason: str | None = None, *, within_seconds: float) -> Manifest:
        """Wait until a condition has this status (and reason), and return it."""
        return eventually(
            lambda: self.condition(kind),
            lambda seen: seen["status"] == status and reason in (None, seen["reason"]),
            within_seconds=within_seconds,
            what=f"{self.name}: {kind}={status} {reason or ''}",
        )

    def await_ready(self) -> Manifest:
        """Wait until the service is ready with its threshold in force, and return it."""
        self.await_condition("Ready", "True", within_seconds=START_SECONDS)
        if self.get()["spec"]["speculation"]["algorithm"] != "None":
            self.await_condition("ThresholdSynced", "True", within_seconds=30)
        return self.get()

    def pods(self) -> list[Manifest]:
        """Its pods that are not being deleted."""
        found = self.cluster.items("pods", "-n", self.namespace, "-l", f"{SERVICE_LABEL}={self.name}")
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def server_values(self) -> dict[str, list[int]]:
        """The threshold by each server's own word, one value a rank, by pod name."""
        port = self.get()["spec"]["engine"]["port"]
        values = {}
        for pod in self.pods():
            name = pod["metadata"]["name"]
            info = self.cluster.http(self.namespace, name, port, "server_info")
            values[name] = [state["speculative_disable_batch_threshold"] for state in info["internal_states"]]
        return values

    def await_servers(self, batch_size: int, *, within_seconds: float) -> None:
        """Wait until every rank of every pod holds this value."""
        eventually(
            self.server_values,
            lambda seen: bool(seen) and all(set(ranks) == {batch_size} for ranks in seen.values()),
            within_seconds=within_seconds,
            what=f"every rank of {self.name} at {batch_size}",
        )

    def boot_value(self) -> int:
        """The threshold that a restarted server starts with."""
        config_map = self.cluster.get("configmap", f"{self.name}-threshold", "-n", self.namespace)
        return int(config_map["data"]["batchSize"])

    def fault(self, pod: str, **faults: bool) -> None:
        """Switch faults of a simulated server on or off."""
        self.cluster.http(self.namespace, pod, self.get()["spec"]["engine"]["port"], "simulator/faults", faults)

    def start_load(self, phases: str) -> None:
        """Send requests from a pod beside the service: phases of parallel requests and seconds, as in `64:60,1:30`."""
        self.cluster.apply(deploy.load_pod(self.get(), phases), namespace=self.namespace)

    def log(self, pod: str, container: str) -> str:
        """A container's log."""
        return self.cluster.kubectl("logs", "-n", self.namespace, pod, "-c", container)


def identity(pod: Manifest) -> tuple[str, int]:
    """Uid and restarts: what a live update must not change."""
    return pod["metadata"]["uid"], sum(item["restartCount"] for item in pod["status"]["containerStatuses"])

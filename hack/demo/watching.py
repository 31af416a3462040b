"""What the demo watches while load comes and goes: one row of figures at a time, from four independent places."""

from __future__ import annotations

from dataclasses import dataclass

from localcluster.client import RESOURCE, LocalCluster, Manifest

SERVICE_LABEL = "serving.sglang-operator.io/service"


@dataclass(frozen=True)
class Identity:
    """Which process serves: a restart of any kind changes it."""

    pod: str
    uid: str
    restarts: int


@dataclass(frozen=True)
class Row:
    """One look. `status`, `config_map` and `server` are the threshold, each by its own word."""

    running_requests: float | None
    status: int
    source: str
    config_map: int
    server: tuple[int, ...]
    identity: Identity
    synced: str

    @property
    def agrees(self) -> bool:
        """Whether status, ConfigMap and every rank of the server hold the same value."""
        return self.synced == "True" and {self.status, self.config_map, *self.server} == {self.status}


@dataclass(frozen=True)
class Watcher:
    """Looks at one service with one pod."""

    cluster: LocalCluster
    namespace: str
    name: str

    def service(self) -> Manifest:
        """The custom resource."""
        return self.cluster.get(RESOURCE, self.name, "--namespace", self.namespace)

    def pod(self) -> Manifest:
        """The service's only pod that is not being deleted."""
        pods = self.cluster.items("pods", "--namespace", self.namespace, "--selector", f"{SERVICE_LABEL}={self.name}")
        return next(pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))

    def look(self) -> Row:
        """Read everything once."""
        service, pod = self.service(), self.pod()
        status = service["status"]
        name = pod["metadata"]["name"]
        port = service["spec"]["engine"]["port"]
        info = self.cluster.http(self.namespace, name, port, "server_info")
        config_map = self.cluster.get("configmap", f"{self.name}-threshold", "--namespace", self.namespace)
        synced = next(item for item in status["conditions"] if item["type"] == "ThresholdSynced")
        return Row(
            running_requests=self._running_requests(name),
            status=status["threshold"]["batchSize"],
            source=status["threshold"]["source"],
            config_map=int(config_map["data"]["batchSize"]),
            server=tuple(state["speculative_disable_batch_threshold"] for state in info["internal_states"]),
            identity=Identity(
                pod=name,
                uid=pod["metadata"]["uid"],
                restarts=sum(item["restartCount"] for item in pod["status"]["containerStatuses"]),
            ),
            synced=synced["status"],
        )

    def _running_requests(self, pod: str) -> float | None:
        query = f'max({{__name__=~"sglang[:_]num_running_reqs",namespace="{self.namespace}",pod="{pod}"}})'
        found = self.cluster.prometheus(query)
        return float(found[0]["value"][1]) if found else None

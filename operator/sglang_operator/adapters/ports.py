"""What reconciling needs from the outside world, as small protocols. Tests put fakes in their place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from sglang_operator.api.names import ServiceKey
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.status.summary import EventLine
from sglang_operator.tuning.samples import MetricsSnapshot


class ChildKind(StrEnum):
    """Kinds of objects that the operator makes for a service."""

    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"


class Cluster(Protocol):
    """The Kubernetes API. All methods raise `ClusterError` and its kinds."""

    async def get_service(self, key: ServiceKey) -> Manifest | None:
        """Read one InferenceService; None when it is gone."""
        ...

    async def list_services(self) -> list[Manifest]:
        """Read all InferenceServices in the operator's scope."""
        ...

    async def get_child(self, kind: ChildKind, key: ServiceKey) -> Manifest | None:
        """Read one child by namespace and name; None when there is none."""
        ...

    async def list_children(self, kind: ChildKind, key: ServiceKey) -> list[Manifest]:
        """Read the children of one kind that carry the service's label."""
        ...

    async def list_pods(self, key: ServiceKey) -> list[Manifest]:
        """Read the pods that carry the service's label."""
        ...

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply one child as the children's field manager, conflicts forced; returns it as stored."""
        ...

    async def delete_child(self, kind: ChildKind, key: ServiceKey) -> None:
        """Delete one child; no error when it is gone already."""
        ...

    async def apply_status(self, key: ServiceKey, status: Manifest) -> None:
        """Server-side apply the status of an InferenceService as the status field manager."""
        ...

    async def record_event(self, service: Manifest, note: EventLine) -> None:
        """Record an event about an InferenceService; failures are logged, never raised."""
        ...


class Metrics(Protocol):
    """The load metrics of every service in the cluster."""

    async def snapshot(self) -> MetricsSnapshot:
        """Ask for everything one tuning pass needs, one query a metric.

        Raises:
            MetricsError: Prometheus could not be asked, or its answer is not usable.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class EngineAddress:
    """Where a server pod listens."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """A server's own word on its threshold: one value a rank, and whether the patch acts."""

    thresholds: tuple[int, ...]
    active: bool
    inactive_reason: str | None
    release: str | None
    off_path: str | None
    generation: int | None


class Engine(Protocol):
    """The HTTP interface of one server pod. All methods raise `EngineError` and its kinds."""

    async def read(self, address: EngineAddress) -> EngineState:
        """Read the threshold back from every rank."""
        ...

    async def set_threshold(self, address: EngineAddress, batch_size: int) -> None:
        """Ask the server for a new threshold. Only a read-back proves that it was taken."""
        ...


class Clock(Protocol):
    """The time of day, and waiting."""

    def now(self) -> datetime:
        """Return the time of day in UTC, with its zone."""
        ...

    def monotonic_seconds(self) -> float:
        """Return a time that never goes back, for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

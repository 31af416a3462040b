"""What reconciling needs from the outside world, as small protocols. Tests put fakes in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class Secret:
    """What a Secret holds, by its keys. It is kept for one pass and shown nowhere."""

    values: Mapping[str, bytes] = field(repr=False)


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

    async def get_secret(self, namespace: str, name: str) -> Secret | None:
        """Read one Secret; None when there is none."""
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
class EngineKeys:
    """The keys that a server was started with, as far as it was; None: it asks for none."""

    api: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """A server's own word on its live settings, one value a rank, and whether the patch acts.

    `probe_permilles` is None where the patch is older than probing. `off_path` is how the server decodes while
    drafting is off, `off_path_reason` why that is not `Decode`.
    """

    thresholds: tuple[int, ...]
    probe_permilles: tuple[int, ...] | None
    active: bool
    inactive_reason: str | None
    release: str | None
    off_path: str | None
    off_path_reason: str | None
    generation: int | None


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """What a running server is told; `probe_permille` None leaves out what an older patch doesn't know."""

    batch_size: int
    probe_permille: int | None


class Engine(Protocol):
    """The HTTP interface of one server pod. All methods raise `EngineError` and its kinds."""

    async def read(self, address: EngineAddress, keys: EngineKeys) -> EngineState:
        """Read the live settings back from every rank."""
        ...

    async def update(self, address: EngineAddress, keys: EngineKeys, settings: LiveSettings) -> None:
        """Ask the server for new settings, all in one. Only a read-back proves that they were taken."""
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

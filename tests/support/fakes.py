"""The outside world in memory, behind the same protocols: what a pass reads, and a record of every write."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sglang_operator.adapters.ports import ChildKind, EngineAddress, EngineState
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.errors import ClusterError, EngineError, MetricsError
from sglang_operator.status.summary import EventLine
from sglang_operator.tuning.samples import MetricsSnapshot

Manifest = dict[str, Any]


@dataclass
class FakeClock:
    """A clock that moves only when told."""

    moment: datetime = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    passed_seconds: float = 0.0

    def now(self) -> datetime:
        return self.moment + timedelta(seconds=self.passed_seconds)

    def monotonic_seconds(self) -> float:
        return self.passed_seconds

    async def sleep(self, seconds: float) -> None:
        self.passed_seconds += seconds


@dataclass
class FakeCluster:
    """An API server that stores what is applied. `refuse` holds names of objects whose writes fail."""

    services: dict[ServiceKey, Manifest] = field(default_factory=dict)
    children: dict[tuple[str, ServiceKey], Manifest] = field(default_factory=dict)
    pods: dict[ServiceKey, Manifest] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    notes: list[EventLine] = field(default_factory=list)
    refuse: dict[str, ClusterError] = field(default_factory=dict)

    async def get_service(self, key: ServiceKey) -> Manifest | None:
        return copy.deepcopy(self.services.get(key))

    async def list_services(self) -> list[Manifest]:
        return [copy.deepcopy(service) for service in self.services.values()]

    async def get_child(self, kind: ChildKind, key: ServiceKey) -> Manifest | None:
        return copy.deepcopy(self.children.get((kind.value, key)))

    async def list_children(self, kind: ChildKind, key: ServiceKey) -> list[Manifest]:
        return [
            copy.deepcopy(child)
            for (stored_kind, stored_key), child in self.children.items()
            if stored_kind == kind.value and stored_key.namespace == key.namespace and _belongs(child, key)
        ]

    async def list_pods(self, key: ServiceKey) -> list[Manifest]:
        found = (pod for pod_key, pod in self.pods.items() if pod_key.namespace == key.namespace)
        return [copy.deepcopy(pod) for pod in found if _belongs(pod, key)]

    async def apply(self, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        if metadata["name"] in self.refuse:
            raise self.refuse[metadata["name"]]
        self.writes.append(f"apply {manifest['kind']} {metadata['name']}")
        stored = copy.deepcopy(manifest)
        stored["metadata"]["generation"] = 1
        self.children[manifest["kind"], ServiceKey(metadata["namespace"], metadata["name"])] = stored
        return stored

    async def delete_child(self, kind: ChildKind, key: ServiceKey) -> None:
        self.writes.append(f"delete {kind.value} {key.name}")
        self.children.pop((kind.value, key), None)

    async def apply_status(self, key: ServiceKey, status: Manifest) -> None:
        self.writes.append(f"status {key.name}")
        self.services[key]["status"] = copy.deepcopy(status)

    async def record_event(self, service: Manifest, note: EventLine) -> None:
        self.notes.append(note)


def _belongs(child: Manifest, key: ServiceKey) -> bool:
    return bool(child["metadata"]["labels"].get(names.LABEL_SERVICE) == key.name)


@dataclass
class FakeEngine:
    """Servers by address: one value a rank. `deaf` servers say yes and keep their value; `errors` are raised."""

    ranks: dict[str, list[int]] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    errors: dict[str, EngineError] = field(default_factory=dict)
    inactive_reason: str | None = None
    requests: list[str] = field(default_factory=list)

    async def read(self, address: EngineAddress) -> EngineState:
        self.requests.append(f"read {address.host}")
        if address.host in self.errors:
            raise self.errors[address.host]
        return EngineState(
            thresholds=tuple(self.ranks[address.host]),
            active=self.inactive_reason is None,
            inactive_reason=self.inactive_reason,
            release="0.5.23",
            off_path="ZeroStep",
            generation=1,
        )

    async def set_threshold(self, address: EngineAddress, batch_size: int) -> None:
        self.requests.append(f"set {address.host} {batch_size}")
        if address.host not in self.deaf:
            self.ranks[address.host] = [batch_size] * len(self.ranks[address.host])


@dataclass
class FakeMetrics:
    """Answers with what it was given."""

    answer: MetricsSnapshot | MetricsError

    async def snapshot(self) -> MetricsSnapshot:
        if isinstance(self.answer, MetricsError):
            raise self.answer
        return self.answer

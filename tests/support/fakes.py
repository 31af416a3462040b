"""The outside world in memory, behind the same protocols: what a pass reads, and a record of every write."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sglang_operator.adapters.ports import ChildKind, EngineAddress, EngineKeys, EngineState, LiveSettings, Secret
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.errors import ClusterError, EngineError, EngineUnauthorized, MetricsError
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
    """An API server that stores what is applied.

    `refuse` holds names of objects whose writes fail, `secrets` the Secrets by name, or what reading one raises.
    """

    services: dict[ServiceKey, Manifest] = field(default_factory=dict)
    children: dict[tuple[str, ServiceKey], Manifest] = field(default_factory=dict)
    pods: dict[ServiceKey, Manifest] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    notes: list[EventLine] = field(default_factory=list)
    refuse: dict[str, ClusterError] = field(default_factory=dict)
    secrets: dict[str, dict[str, bytes] | ClusterError] = field(default_factory=dict)
    secret_reads: list[str] = field(default_factory=list)

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

    async def get_secret(self, namespace: str, name: str) -> Secret | None:
        self.secret_reads.append(f"{namespace}/{name}")
        held = self.secrets.get(name)
        if isinstance(held, ClusterError):
            raise held
        return None if held is None else Secret(values=held)

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
    """Servers by address: one value a rank. `deaf` servers say yes and keep their value; `errors` are raised.

    `probes` holds the probe share of each rank; a server that isn't there has an older patch. `keys` holds what a
    server asks for. `off_path` is what all of them say, with the reason why it isn't `Decode`.
    """

    ranks: dict[str, list[int]] = field(default_factory=dict)
    probes: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, EngineKeys] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    errors: dict[str, EngineError] = field(default_factory=dict)
    inactive_reason: str | None = None
    off_path: tuple[str, str | None] = ("Decode", None)
    requests: list[str] = field(default_factory=list)

    async def read(self, address: EngineAddress, keys: EngineKeys) -> EngineState:
        self.requests.append(f"read {address.host}")
        self._check(address, keys.api, self._asked(address).api)
        probes = self.probes.get(address.host)
        path, reason = self.off_path
        return EngineState(
            thresholds=tuple(self.ranks[address.host]),
            probe_permilles=None if probes is None else tuple(probes),
            active=self.inactive_reason is None,
            inactive_reason=self.inactive_reason,
            release="0.5.23",
            off_path=path,
            off_path_reason=reason,
            generation=1 if probes is None else 2,
        )

    async def update(self, address: EngineAddress, keys: EngineKeys, settings: LiveSettings) -> None:
        probing = "" if settings.probe_permille is None else f" probing {settings.probe_permille}"
        self.requests.append(f"set {address.host} {settings.batch_size}{probing}")
        asked = self._asked(address)
        self._check(address, keys.admin or keys.api, asked.admin or asked.api)
        if address.host in self.deaf:
            return
        self.ranks[address.host] = [settings.batch_size] * len(self.ranks[address.host])
        if settings.probe_permille is not None:
            self.probes[address.host] = [settings.probe_permille] * len(self.probes[address.host])

    def _asked(self, address: EngineAddress) -> EngineKeys:
        return self.keys.get(address.host, EngineKeys())

    def _check(self, address: EngineAddress, sent: str | None, asked: str | None) -> None:
        if address.host in self.errors:
            raise self.errors[address.host]
        if asked is not None and sent != asked:
            raise EngineUnauthorized(f"{address.host} refuses the key (HTTP 401).")


@dataclass
class FakeMetrics:
    """Answers with what it was given."""

    answer: MetricsSnapshot | MetricsError

    async def snapshot(self) -> MetricsSnapshot:
        if isinstance(self.answer, MetricsError):
            raise self.answer
        return self.answer

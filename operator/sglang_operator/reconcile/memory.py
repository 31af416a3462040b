"""What the process remembers between passes. All of it can be lost: it is read again from the cluster and the pods."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_operator.api.decision import Decision
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode
from sglang_operator.status.observation import MetricsFacts, PodThreshold
from sglang_operator.tuning.policy import TunerState


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    """What one server process said last, and when (monotonic seconds)."""

    threshold: PodThreshold
    read_at_seconds: float


@dataclass(kw_only=True)
class ServiceMemory:
    """One service's part. Only the pass over the service and the tuning loop write it, both in one event loop."""

    policy: DisableThreshold | None = None
    """None until the first pass, and while the service does not speculate."""
    pods: frozenset[str] = frozenset()
    """Names of the pods that the service owns now."""
    decision: Decision | None = None
    metrics: MetricsFacts | None = None
    tuner: TunerState = field(default_factory=TunerState)
    unfinished_passes: int = 0
    """Passes in a row that could not bring everything about."""
    read_backs: dict[str, ReadBack] = field(default_factory=dict)
    """By identity of the server process (pod uid and container id)."""


class Memory:
    """All services that were seen and not deleted."""

    def __init__(self) -> None:
        self._services: dict[ServiceKey, ServiceMemory] = {}

    def of(self, key: ServiceKey) -> ServiceMemory:
        """Return the service's part; an empty one on the first visit."""
        return self._services.setdefault(key, ServiceMemory())

    def forget(self, key: ServiceKey) -> None:
        """Drop a deleted service."""
        self._services.pop(key, None)

    def known(self) -> tuple[ServiceKey, ...]:
        """Return all services."""
        return tuple(self._services)

    def measured(self) -> tuple[tuple[ServiceKey, ServiceMemory, DisableThreshold], ...]:
        """Return the services whose threshold follows measurements."""
        return tuple(
            (key, service, service.policy)
            for key, service in self._services.items()
            if service.policy is not None and service.policy.mode is ThresholdMode.AUTO
        )

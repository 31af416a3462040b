"""Facts about pods and their Deployment, read once from the manifests and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sglang_operator.status.patchresult import PatchResult


class ContainerState(StrEnum):
    """Where a container stands; `UNSEEN` before the kubelet's first word."""

    UNSEEN = "Unseen"
    WAITING = "Waiting"
    RUNNING = "Running"
    TERMINATED = "Terminated"


@dataclass(frozen=True, kw_only=True)
class Termination:
    """How a run of a container ended."""

    exit_code: int
    reason: str
    message: str
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def ran(self) -> timedelta | None:
        """How long the run lasted; None when the kubelet doesn't know."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """One container of a pod. `started`: its startup probe has passed."""

    state: ContainerState = ContainerState.UNSEEN
    waiting_reason: str = ""
    waiting_message: str = ""
    running_since: datetime | None = None
    started: bool = False
    ready: bool = False
    restarts: int = 0
    termination: Termination | None = None
    last_termination: Termination | None = None
    memory_limit: str | None = None

    @property
    def latest_end(self) -> Termination | None:
        """The end of the newest run that ended."""
        return self.termination or self.last_termination

    @property
    def ended_runs(self) -> int:
        """How many runs ended. The kubelet counts a restart when the next run begins, not when one ends."""
        if self.latest_end is None:
            return 0
        return self.restarts if self.state is ContainerState.RUNNING else self.restarts + 1


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What the scheduler said about a pod: `scheduled` is None before its first word."""

    scheduled: bool | None = None
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """One pod of the service.

    `patch` is None when the pod has no patch container; `patch_result` is None until it ended, and holds a failed
    run's result while the next one is tried. `ready_since` is when `ready` last changed.
    """

    name: str
    uid: str
    ip: str | None = None
    revision: str | None = None
    deleting: bool = False
    phase: str = "Pending"
    failure_reason: str = ""
    failure_message: str = ""
    placement: Placement = Placement()
    ready: bool = False
    ready_message: str = ""
    ready_since: datetime | None = None
    patch: ContainerFacts | None = None
    patch_result: PatchResult | None = None
    engine: ContainerFacts = ContainerFacts()
    startup_budget_seconds: int | None = None
    termination_grace_seconds: int = 30
    extended_resources: tuple[tuple[str, str], ...] = ()
    node_requirements: str = ""

    @property
    def ended(self) -> bool:
        """The pod will never run again: evicted, refused by its node, or done."""
        return self.phase in {"Failed", "Succeeded"}

    @property
    def active(self) -> bool:
        """The pod runs, or is meant to."""
        return not self.deleting and not self.ended

    @property
    def answers(self) -> bool:
        """The pod takes requests."""
        return self.active and self.ready


@dataclass(frozen=True, kw_only=True)
class WorkloadFacts:
    """The Deployment. All counts are the Deployment controller's own; `observed`: it has seen the newest spec."""

    exists: bool
    desired_replicas: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    revision: str | None = None
    observed: bool = False
    progress_deadline_exceeded: bool = False
    replica_failure: str = ""

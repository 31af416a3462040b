"""Everything that one pass knows about one service: conditions come from this, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import OffPath
from sglang_operator.status.facts import PodFacts, WorkloadFacts
from sglang_operator.status.manifests import observe_deployment, observe_pod

__all__ = [
    "ApplyFailure",
    "MetricsFacts",
    "Observation",
    "PodFacts",
    "PodThreshold",
    "SpecRefusal",
    "ThresholdErrorKind",
    "WorkloadFacts",
    "observe_deployment",
    "observe_pod",
]


class ThresholdErrorKind(StrEnum):
    """Why a pod's threshold could not be set or read back."""

    UNREACHABLE = "Unreachable"
    UNAUTHORIZED = "Unauthorized"
    NO_KEY = "NoKey"
    """The server wants a key, and its Secret doesn't give the operator one."""
    KEY_NOT_READ = "KeyNotRead"
    """The API server failed to hand over the Secret; that passes."""
    REFUSED = "Refused"


@dataclass(frozen=True, kw_only=True)
class PodThreshold:
    """One pod's own word on its threshold: `values` holds one a rank, None when it could not be read.

    `probe_permilles` is None where the engine patch is older than probing. `off_path` is how the server decodes while
    drafting is off, `off_path_reason` why that is not `Decode`.
    """

    pod: str
    values: tuple[int, ...] | None = None
    probe_permilles: tuple[int, ...] | None = None
    off_path: str | None = None
    off_path_reason: str | None = None
    active: bool = True
    inactive_reason: str | None = None
    error_kind: ThresholdErrorKind | None = None
    error_message: str = ""
    release: str | None = None

    def holds(self, batch_size: int) -> bool:
        """Whether every rank was read back with this value."""
        return bool(self.values) and all(value == batch_size for value in self.values or ())

    def probes(self, probe_permille: int) -> bool:
        """Whether every rank that can probe was read back with this share."""
        return all(value == probe_permille for value in self.probe_permilles or ())

    def follows(self, decision: Decision) -> bool:
        """Whether every rank was read back with what was decided."""
        return self.holds(decision.batch_size) and self.probes(decision.probe_permille)


@dataclass(frozen=True, kw_only=True)
class MetricsFacts:
    """How usable the load metrics are.

    `reason` is one of `Fresh`, `NotUsed`, `NotConfigured`, `MetricsUnreachable`, `MetricsInvalid`, `NoData` and
    `Stale`; `message` says why; `last_good_at` is the time of the last usable sample.
    """

    reason: Reason
    message: str = ""
    last_good_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SpecRefusal:
    """Why the spec was refused; `reason` as in `SpecError`."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ApplyFailure:
    """What could not be written to the cluster.

    `reason` is `ApplyFailed` or `OperatorForbidden`. `boot_value_only`: everything but the threshold's boot value
    is in place, so that the pods run as declared.
    """

    reason: Reason
    message: str
    boot_value_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that one pass knows about one service.

    None means "not known", never "none": `pods` is None when they were not listed, `workload` when the Deployment
    was not read, `desired_replicas`, `speculates`, `off_path` and `revision` when the spec was refused.
    """

    selector: str
    url: str | None = None
    desired_replicas: int | None = None
    speculates: bool | None = None
    off_path: OffPath | None = None
    revision: str | None = None
    patch_digest: str | None = None
    spec_error: SpecRefusal | None = None
    apply_error: ApplyFailure | None = None
    workload: WorkloadFacts | None = None
    pods: tuple[PodFacts, ...] | None = None
    decision: Decision | None = None
    thresholds: tuple[PodThreshold, ...] = ()
    metrics: MetricsFacts | None = None

    @property
    def judged_revision(self) -> str | None:
        """The revision whose pods are judged: the declared one, or the running one while the spec is refused."""
        return self.revision or (self.workload.revision if self.workload else None)

    @property
    def desired(self) -> int | None:
        """Pods asked for; None when neither the spec nor the Deployment says so."""
        if self.desired_replicas is not None:
            return self.desired_replicas
        return self.workload.desired_replicas if self.workload and self.workload.exists else None

    @property
    def active_pods(self) -> tuple[PodFacts, ...]:
        """Pods that run or are meant to, by name."""
        return tuple(sorted((pod for pod in self.pods or () if pod.active), key=lambda pod: pod.name))

    @property
    def current_pods(self) -> tuple[PodFacts, ...]:
        """Active pods of the judged revision, by name."""
        return tuple(pod for pod in self.active_pods if pod.revision == self.judged_revision)

    @property
    def older_pods(self) -> tuple[PodFacts, ...]:
        """Active pods of any other revision, by name."""
        return tuple(pod for pod in self.active_pods if pod.revision != self.judged_revision)

    @property
    def answering_pods(self) -> tuple[PodFacts, ...]:
        """Pods of any revision that take requests, by name."""
        return tuple(pod for pod in self.active_pods if pod.answers)

"""Whole lives of a service, pass by pass: what each condition says, and what is told, at every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from observing import decision, in_step, observe, short
from podbuilder import (
    NOW,
    answering,
    creating,
    deleting,
    deployment,
    loading,
    patching,
    refused,
    unschedulable,
    unseen,
)

from sglang_operator.api.reasons import ConditionType
from sglang_operator.api.v1alpha1 import InferenceServiceStatus, Manifest
from sglang_operator.status.summary import build_status, events

A, B = "rev-a", "rev-b"
NO_GPUS = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1 No preemption"


@dataclass
class Life:
    """Passes over one service, ten seconds apart, each on the status of the one before."""

    generation: int = 1
    revision: str = A
    status: InferenceServiceStatus | None = None
    passes: int = 0
    written: int = 0
    told: list[str] = field(default_factory=list)

    def see(self, *pods: Manifest, batch_size: int = 32, held: int | None = None, **changes: object) -> None:
        """One pass over these pods; those that answer hold `held`, or the decided value."""
        self.passes += 1
        up = [pod for pod in pods if pod["status"].get("conditions", [{}])[-1].get("status") == "True"]
        facts: dict[str, object] = {
            "revision": self.revision,
            "decision": decision(batch_size),
            "thresholds": in_step(up, batch_size if held is None else held),
            **changes,
        }
        workload = deployment(revision=self.revision)
        observation = observe(pods, workload, **facts)
        now = NOW + timedelta(seconds=10 * self.passes)
        current = build_status(observation, self.status, self.generation, now)
        self.told = [line.reason.value for line in events(self.status, current)]
        self.written += current != self.status
        self.status = current

    def declare(self, revision: str) -> None:
        """Somebody changes the spec."""
        self.generation += 1
        self.revision = revision

    def says(self, **expected: str) -> None:
        """Check `Condition="Status/Reason"` for the named conditions, and that all nine are there."""
        assert self.status is not None
        judged = {condition.type: "/".join(short(condition)) for condition in self.status.conditions}
        assert list(judged) == [kind.value for kind in ConditionType]
        assert {kind: judged[kind] for kind in expected} == expected
        assert {condition.observed_generation for condition in self.status.conditions} == {self.generation}


def started() -> Life:
    life = Life()
    life.see(answering())
    life.says(Ready="True/Available", Degraded="False/AsExpected")
    return life


def test_from_the_first_visit_to_ready() -> None:
    life = Life()
    life.see()
    life.says(
        Ready="False/NotServing",
        SpecValid="True/Accepted",
        Scheduled="Unknown/PodsPending",
        PatchVerified="Unknown/PatchPending",
        Serving="False/NotServing",
        UpToDate="False/RollingOut",
        MetricsAvailable="True/Fresh",
        ThresholdSynced="Unknown/NoPods",
        Degraded="False/AsExpected",
    )
    assert life.told == ["ThresholdChanged"]
    life.see(unseen())
    life.says(Ready="False/NotServing", Scheduled="Unknown/PodsPending")
    life.see(unschedulable(NO_GPUS))
    life.says(Ready="False/InsufficientGPUs", Scheduled="False/InsufficientGPUs", Degraded="False/AsExpected")
    life.see(creating())
    life.says(Ready="False/Starting", Scheduled="True/PodsScheduled", PatchVerified="Unknown/PatchPending")
    life.see(patching())
    life.says(Ready="False/Starting", PatchVerified="Unknown/PatchPending")
    life.see(loading())
    life.says(Ready="False/Starting", PatchVerified="True/Patched", Serving="False/Starting")
    assert life.told == ["PatchVerified"]
    life.see(answering(), held=0)
    life.says(Ready="True/Available", Serving="True/Serving", UpToDate="True/Current", ThresholdSynced="False/Syncing")
    assert life.told == ["Ready"]
    life.see(answering())
    life.says(Ready="True/Available", ThresholdSynced="True/Synced")
    assert life.told == ["ThresholdSynced"]


def test_a_threshold_that_moves_touches_nothing_else() -> None:
    life = started()
    life.see(answering(), batch_size=16, held=32)
    life.says(Ready="True/Available", UpToDate="True/Current", ThresholdSynced="False/Syncing")
    assert life.told == ["ThresholdChanged"]
    life.see(answering(), batch_size=16)
    life.says(Ready="True/Available", ThresholdSynced="True/Synced", Degraded="False/AsExpected")
    assert life.told == ["ThresholdSynced"]
    assert life.status is not None
    assert life.status.threshold is not None
    assert (life.status.threshold.batch_size, life.status.threshold.synced_pods) == (16, 1)


def test_a_bad_upgrade_one_pod_after_the_other_and_back() -> None:
    life = Life()
    old, other = answering("demo-a1"), answering("demo-a2")
    life.see(old, other, desired_replicas=2)
    life.says(Ready="True/Available")
    life.declare(B)
    life.see(old, deleting(other), creating("demo-b1", revision=B), desired_replicas=2)
    life.says(Ready="False/RollingOut", Serving="True/Serving", PatchVerified="Unknown/PatchPending")
    assert life.told == ["RollingOut", "NotReady"]
    life.see(old, refused("demo-b1", revision=B), desired_replicas=2)
    life.says(
        Ready="False/UnsupportedSource",
        Serving="True/Serving",
        PatchVerified="False/UnsupportedSource",
        UpToDate="False/RollingOut",
        ThresholdSynced="True/Synced",
        Degraded="True/UnsupportedSource",
    )
    assert life.told == ["PatchRefused"]
    life.see(old, refused("demo-b1", revision=B), desired_replicas=2)
    assert life.told == []
    life.declare(A)
    life.see(old, deleting(refused("demo-b1", revision=B)), loading("demo-a3"), desired_replicas=2)
    life.says(
        Ready="False/RollingOut",
        Serving="True/Serving",
        PatchVerified="True/Patched",
        UpToDate="False/RollingOut",
        Degraded="False/AsExpected",
    )
    life.see(old, answering("demo-a3"), desired_replicas=2)
    life.says(Ready="True/Available", UpToDate="True/Current", Degraded="False/AsExpected")
    assert "Ready" in life.told


def test_an_upgrade_that_frees_the_gpus_first() -> None:
    life = started()
    life.declare(B)
    life.see(deleting(answering()))
    life.says(
        Ready="False/NotServing",
        Serving="False/NotServing",
        UpToDate="False/RollingOut",
        Scheduled="Unknown/PodsPending",
        ThresholdSynced="Unknown/NoPods",
    )
    assert life.told == ["RollingOut", "NotReady"]
    life.see(loading("demo-b1", revision=B))
    life.says(Ready="False/Starting", UpToDate="False/RollingOut", PatchVerified="True/Patched")
    life.see(answering("demo-b1", revision=B))
    life.says(Ready="True/Available", UpToDate="True/Current")


def test_a_pod_that_is_moved_to_another_node_is_no_rollout() -> None:
    life = started()
    life.see(deleting(answering()), unseen("demo-2"))
    life.says(Ready="False/NotServing", Serving="False/NotServing", UpToDate="True/Current")
    assert life.told == ["NotReady"]
    life.see(loading("demo-2"))
    life.says(Ready="False/Starting", UpToDate="True/Current")
    life.see(answering("demo-2"))
    life.says(Ready="True/Available", UpToDate="True/Current", ThresholdSynced="True/Synced")


def test_an_idle_service_is_written_once() -> None:
    life = started()
    for _ in range(500):
        life.see(answering())
        assert life.told == []
    assert life.written == 1

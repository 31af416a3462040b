from __future__ import annotations

import pytest
from observing import judge, observe, short
from podbuilder import answering, deleting, deployment, evicted, loading, unschedulable, unseen

from sglang_operator.api.reasons import ConditionType

PREEMPTION = " preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."

SCHEDULER = [
    ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu." + PREEMPTION, "InsufficientGPUs", "8 nvidia.com/gpu"),
    (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }." + PREEMPTION,
        "InsufficientGPUs",
        "lower gpus.count",
    ),
    (
        "0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory." + PREEMPTION,
        "PodsPending",
        "enough cpu, memory free. Correct engine.resources",
    ),
    (
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector." + PREEMPTION,
        "NoMatchingNode",
        "nvidia.com/gpu.count > 7, nvidia.com/gpu.compute.major in (10, 12)",
    ),
    (
        "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 node(s) "
        "didn't match Pod's node affinity/selector." + PREEMPTION,
        "NoMatchingNode",
        "Nodes with taints that it doesn't tolerate were left out.",
    ),
    (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node "
        "affinity/selector." + PREEMPTION,
        "NoMatchingNode",
        "nvidia.com/gpu.count > 7",
    ),
    ("no nodes available to schedule pods", "NoMatchingNode", "nvidia.com/gpu.count > 7"),
    (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint "
        "{dedicated: research}." + PREEMPTION,
        "UntoleratedTaint",
        "{dedicated: research}",
    ),
    ("0/2 nodes are available: 2 node(s) had untolerated taint(s).", "UntoleratedTaint", "podTemplate.tolerations"),
    (
        "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
        "PodsPending",
        "kubectl get nodes",
    ),
    ("0/1 nodes are available: 1 node(s) were unschedulable.", "PodsPending", "cordoned"),
    (
        '0/2 nodes are available: persistentvolumeclaim "weights" not found. preemption: 0/2 nodes are available: 2 '
        "Preemption is not helpful for scheduling.",
        "PodsPending",
        "model.cache.claimName",
    ),
    (
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "PodsPending",
        "a volume can't be had",
    ),
    (
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules.",
        "PodsPending",
        "no node takes it",
    ),
    ("", "PodsPending", "no node takes it"),
]


@pytest.mark.parametrize(("message", "reason", "told"), SCHEDULER)
def test_the_schedulers_refusal_becomes_cause_and_next_step(message: str, reason: str, told: str) -> None:
    condition = judge(observe([unschedulable(message)]))[ConditionType.SCHEDULED]
    assert short(condition) == ("False", reason)
    assert told in condition.message
    assert condition.message.startswith("Pod demo-7d9f6c5b8-x2x4k: ")
    assert "preemption" not in condition.message
    if message:
        assert f"Scheduler: {message.partition(' preemption:')[0].removesuffix('.')}." in condition.message


def test_a_queue_that_holds_the_pod_is_named() -> None:
    gated = unschedulable("Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")
    condition = judge(observe([gated]))[ConditionType.SCHEDULED]
    assert short(condition) == ("False", "PodsPending")
    assert "scheduling gates" in condition.message


REFUSALS = [
    (
        'pods "demo-7d9f6c5b8-abcde" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: '
        "requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=4",
        "QuotaExceeded",
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8",
    ),
    (
        'pods "demo-7d9f6c5b8-abcde" is forbidden: failed quota: compute: must specify limits.memory for: engine,patch',
        "QuotaExceeded",
        "must specify limits.memory",
    ),
    (
        'pods "demo-7d9f6c5b8-abcde" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes (volume '
        '"models")',
        "PodRefused",
        "podTemplate.securityContext",
    ),
    (
        'admission webhook "validate.kyverno.svc-fail" denied the request: images must be signed',
        "PodRefused",
        "images must be signed.",
    ),
    (
        'pods "demo-7d9f6c5b8-abcde" is forbidden: error looking up service account default/runner: serviceaccount '
        '"runner" not found',
        "PodRefused",
        "podTemplate.serviceAccountName",
    ),
    (
        'pods "demo-7d9f6c5b8-abcde" is forbidden: no PriorityClass with name urgent was found',
        "PodRefused",
        "podTemplate.priorityClassName",
    ),
    (
        'pods "demo-7d9f6c5b8-abcde" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi',
        "PodRefused",
        "LimitRange",
    ),
]


@pytest.mark.parametrize(("failure", "reason", "told"), REFUSALS)
def test_a_pod_that_the_cluster_refuses(failure: str, reason: str, told: str) -> None:
    condition = judge(observe([], deployment(failure=failure)))[ConditionType.SCHEDULED]
    assert short(condition) == ("False", reason)
    assert told in condition.message
    # The refused pod gets a new name at each try; it must not cause a write.
    assert "abcde" not in condition.message


def test_a_refusal_that_is_over_is_not_told() -> None:
    condition = judge(observe([answering()], deployment(failure="exceeded quota: gpus")))[ConditionType.SCHEDULED]
    assert short(condition) == ("True", "PodsScheduled")


def test_all_pods_have_a_node() -> None:
    pods = [answering("demo-a"), loading("demo-b")]
    condition = judge(observe(pods, desired_replicas=2))[ConditionType.SCHEDULED]
    assert short(condition) == ("True", "PodsScheduled")
    assert condition.message == "2 of 2 pods have a node."


def test_a_pod_of_an_older_revision_does_not_count() -> None:
    condition = judge(observe([answering(revision="rev-old")]))[ConditionType.SCHEDULED]
    assert short(condition) == ("Unknown", "PodsPending")


@pytest.mark.parametrize("pods", [[], [unseen()]])
def test_nobody_knows_before_the_scheduler_spoke(pods: list[dict[str, object]]) -> None:
    assert short(judge(observe(pods))[ConditionType.SCHEDULED]) == ("Unknown", "PodsPending")


def test_pods_that_are_being_stopped_are_told_since_they_hold_gpus() -> None:
    condition = judge(observe([deleting(answering(revision="rev-old"))]))[ConditionType.SCHEDULED]
    assert "GPUs are still held by 1 pod being stopped." in condition.message


def test_a_pod_that_its_node_threw_out_is_told() -> None:
    condition = judge(observe([evicted()]))[ConditionType.SCHEDULED]
    assert short(condition) == ("Unknown", "PodsPending")
    assert "A pod ended as UnexpectedAdmissionError. Allocate failed" in condition.message


def test_the_most_telling_of_several_pods_speaks() -> None:
    pods = [
        unschedulable("0/2 nodes are available: 2 Too many pods.", "demo-a"),
        unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", "demo-b"),
    ]
    condition = judge(observe(pods, desired_replicas=2))[ConditionType.SCHEDULED]
    assert short(condition) == ("False", "InsufficientGPUs")
    assert "demo-b" in condition.message


def test_no_pod_asked_for_and_nothing_seen() -> None:
    assert short(judge(observe([], desired_replicas=0))[ConditionType.SCHEDULED]) == ("True", "ScaledToZero")
    assert short(judge(observe(None))[ConditionType.SCHEDULED]) == ("Unknown", "NotObserved")

"""`Ready`: the written precedence, and that nothing makes it true but what is declared."""

from __future__ import annotations

import pytest
from observing import in_step, judge, observe, short
from podbuilder import (
    answering,
    container,
    crash_back_off,
    crashed,
    deleting,
    deployment,
    evicted,
    loading,
    patching,
    pod,
    refused,
    terminated,
    unschedulable,
    unseen,
    waiting,
)

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition
from sglang_operator.status.observation import (
    ApplyFailure,
    MetricsFacts,
    Observation,
    PodThreshold,
    SpecRefusal,
    ThresholdErrorKind,
)

OLD = answering("demo-old", revision="rev-old")
NO_GPUS = unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", "demo-gpu")
LOOPING = crashed(crash_back_off("engine", "demo"), last=terminated(1), restarts=4, name="demo-loop")


def verdict(observation: Observation) -> Condition:
    return judge(observation)[ConditionType.READY]


def test_all_pods_of_the_declared_revision_answer() -> None:
    condition = verdict(observe([answering("demo-a"), answering("demo-b")], desired_replicas=2))
    assert short(condition) == ("True", "Available")
    assert condition.message == "2 pods answer."


def test_threshold_and_metrics_have_no_part_in_it() -> None:
    failed = PodThreshold(pod="demo-7d9f6c5b8-x2x4k", error_kind=ThresholdErrorKind.UNAUTHORIZED)
    observation = observe([answering()], thresholds=(failed,), metrics=MetricsFacts(reason=Reason.METRICS_UNREACHABLE))
    assert short(verdict(observation)) == ("True", "Available")


FALSE = [
    (observe([]), "NotServing"),
    (observe([unseen()]), "NotServing"),
    (observe([patching()]), "Starting"),
    (observe([loading()]), "Starting"),
    (observe([deleting(answering())]), "NotServing"),
    (observe([evicted()]), "NotServing"),
    (observe([NO_GPUS]), "InsufficientGPUs"),
    (observe([refused()]), "UnsupportedSource"),
    (observe([LOOPING]), "CrashLoop"),
    (observe([pod(patch=container(waiting("ErrImagePull", "not found")))]), "ImagePullFailed"),
    (observe([loading()], deployment(late=True)), "ProgressDeadlineExceeded"),
    (observe([answering("demo-a"), loading("demo-b")], desired_replicas=2), "RollingOut"),
    (observe([answering("demo-a")], desired_replicas=2), "RollingOut"),
    (observe([], desired_replicas=0), "ScaledToZero"),
    (observe([answering()], desired_replicas=0), "ScaledToZero"),
]


@pytest.mark.parametrize(("observation", "reason"), FALSE)
def test_not_ready_with_the_most_telling_reason(observation: Observation, reason: str) -> None:
    assert short(verdict(observation)) == ("False", reason)


OLD_SERVES = [
    (observe([OLD]), "RollingOut"),
    (observe([OLD, loading()]), "RollingOut"),
    (observe([OLD, answering()]), "RollingOut"),
    (observe([OLD], deployment(revision="rev-old")), "RollingOut"),
    (observe([OLD, NO_GPUS]), "InsufficientGPUs"),
    (observe([OLD, refused()]), "UnsupportedSource"),
    (observe([OLD, LOOPING]), "CrashLoop"),
    (observe([OLD, loading()], deployment(late=True)), "ProgressDeadlineExceeded"),
    (observe([OLD], apply_error=ApplyFailure(reason=Reason.APPLY_FAILED, message="No.")), "ApplyFailed"),
    (
        observe(
            [answering()],
            spec_error=SpecRefusal(reason="InvalidSpec", message="No."),
            revision=None,
            desired_replicas=None,
        ),
        "InvalidSpec",
    ),
]


@pytest.mark.parametrize(("observation", "reason"), OLD_SERVES)
def test_a_service_that_runs_goes_on_but_the_declared_one_is_not_ready(observation: Observation, reason: str) -> None:
    judged = judge(observation)
    assert judged[ConditionType.SERVING].status == "True"
    assert short(judged[ConditionType.READY]) == ("False", reason)


def test_scaling_up_is_told_as_progress() -> None:
    known = tuple(judge(observe([answering("demo-a")])).values())
    more = observe([answering("demo-a"), loading("demo-b")], deployment(replicas=2), desired_replicas=2)
    condition = judge(more, known)[ConditionType.READY]
    assert short(condition) == ("False", "Progressing")
    assert condition.message.startswith("1 of 2 pods answer. Pod demo-b: the server has been loading")


def test_every_step_of_the_precedence() -> None:
    """Causes are taken away one after the other; what is left speaks in the written order."""
    pods = [NO_GPUS, refused("demo-refused"), LOOPING, loading("demo-loading"), OLD]
    facts: dict[str, object] = {
        "spec_error": SpecRefusal(reason="InvalidSpec", message="No."),
        "apply_error": ApplyFailure(reason=Reason.APPLY_FAILED, message="No."),
        "desired_replicas": 4,
    }
    late = deployment(late=True, replicas=4)
    seen: list[str] = []

    def see(observation: Observation) -> None:
        seen.append(verdict(observation).reason)

    see(observe(None, late, **facts))
    del facts["spec_error"]
    see(observe(None, late, **facts))
    see(observe(pods, late, **{**facts, "desired_replicas": 0}))
    see(observe(pods, late, **facts))
    del facts["apply_error"]
    see(observe(pods, late, **facts))
    for rest in (pods[1:], pods[2:], pods[3:]):
        see(observe(rest, late, **facts))
    see(observe(pods[3:], deployment(replicas=4), **facts))
    see(observe(pods[3:4], deployment(replicas=4), **facts))
    assert seen == [
        "InvalidSpec",
        "NotObserved",
        "ScaledToZero",
        "ApplyFailed",
        "InsufficientGPUs",
        "UnsupportedSource",
        "CrashLoop",
        "ProgressDeadlineExceeded",
        "RollingOut",
        "Starting",
    ]


def test_facts_that_are_missing_leave_it_open() -> None:
    assert short(verdict(observe(None))) == ("Unknown", "NotObserved")


def test_a_pod_that_answers_with_an_unconfirmed_patch_is_not_ready() -> None:
    odd = answering()
    odd["status"]["initContainerStatuses"] = []
    assert short(verdict(observe([odd], thresholds=in_step([odd])))) == ("False", "PatchPending")

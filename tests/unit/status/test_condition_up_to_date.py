from __future__ import annotations

from dataclasses import replace

import pytest
from observing import judge, observe, short
from podbuilder import (
    answering,
    crash_back_off,
    crashed,
    deleting,
    deployment,
    evicted,
    loading,
    patching,
    refused,
    terminated,
    unschedulable,
)

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition, Manifest
from sglang_operator.status.observation import ApplyFailure, Observation, SpecRefusal, WorkloadFacts

OLD = "rev-old"


def verdict(observation: Observation, previous: tuple[Condition, ...] = ()) -> Condition:
    return judge(observation, previous)[ConditionType.UP_TO_DATE]


def once_up_to_date() -> tuple[Condition, ...]:
    return tuple(judge(observe([answering()])).values())


def test_all_pods_of_the_declared_revision_answer() -> None:
    condition = verdict(observe([answering()]))
    assert short(condition) == ("True", "Current")
    assert condition.message == "Revision rev-a runs everywhere."


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [loading()],
        [answering("demo-old", revision=OLD)],
        [answering("demo-old", revision=OLD), loading()],
        [answering("demo-old", revision=OLD), answering()],
    ],
)
def test_an_older_pod_never_makes_the_new_revision_look_rolled_out(pods: list[Manifest]) -> None:
    condition = verdict(observe(pods))
    assert short(condition) == ("False", "RollingOut")


def test_the_message_says_what_is_left_and_what_is_in_the_way() -> None:
    pods = [
        answering("demo-old", revision=OLD),
        unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
    ]
    assert verdict(observe(pods)).message == (
        "Revision rev-a: 0 of 1 pod answers. 1 pod of an older revision is left. Pod demo-7d9f6c5b8-x2x4k: waits for a "
        "node."
    )


def test_a_deployment_without_the_declared_revision() -> None:
    condition = verdict(observe([answering(revision=OLD)], deployment(revision=OLD)))
    assert short(condition) == ("False", "RollingOut")


def test_past_the_deadline() -> None:
    condition = verdict(observe([refused()], deployment(late=True)))
    assert short(condition) == ("False", "ProgressDeadlineExceeded")
    assert "rollout.progressDeadlineSeconds" in condition.message
    assert "srt/server_args.py" in condition.message


def test_a_deadline_of_the_rollout_before_is_not_told() -> None:
    condition = verdict(observe([loading()], deployment(late=True, observed=False)))
    assert short(condition) == ("False", "RollingOut")


LATER = [
    [loading()],
    [crashed(crash_back_off("engine", "demo"), last=terminated(1), restarts=4)],
    [deleting(answering()), patching("demo-b")],
    [answering(), evicted("demo-gone", revision=OLD)],
]


@pytest.mark.parametrize("pods", LATER)
def test_once_rolled_out_a_crash_or_a_move_is_no_rollout(pods: list[Manifest]) -> None:
    assert short(verdict(observe(pods), once_up_to_date())) == ("True", "Current")


def test_once_rolled_out_more_replicas_are_no_rollout() -> None:
    pods = [answering("demo-a"), loading("demo-b")]
    condition = verdict(observe(pods, deployment(replicas=2), desired_replicas=2), once_up_to_date())
    assert short(condition) == ("True", "Current")


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [answering("demo-old", revision=OLD)],
        [deleting(answering("demo-old", revision=OLD))],
        [deleting(answering("demo-old", revision=OLD)), loading()],
    ],
)
def test_a_new_revision_must_answer_before_it_counts(pods: list[Manifest]) -> None:
    assert short(verdict(observe(pods), once_up_to_date())) == ("False", "RollingOut")


def test_a_refused_spec_is_not_rolled_out() -> None:
    refusal = SpecRefusal(reason="ConflictingArgs", message="engine.args: --tp 4 contradicts gpus.count 8.")
    condition = verdict(observe([answering()], spec_error=refusal, revision=None, desired_replicas=None))
    assert short(condition) == ("False", "ConflictingArgs")
    assert "last spec that was valid" in condition.message


def test_what_could_not_be_written_is_the_reason() -> None:
    failure = ApplyFailure(reason=Reason.OPERATOR_FORBIDDEN, message="Deployment demo: forbidden")
    assert short(verdict(observe([answering()], apply_error=failure))) == ("False", "OperatorForbidden")


def test_a_boot_value_that_could_not_be_written_rolls_nothing_back() -> None:
    failure = ApplyFailure(
        reason=Reason.APPLY_FAILED, message="ConfigMap demo-threshold: timeout", boot_value_only=True
    )
    judged = judge(observe([answering()], apply_error=failure))
    assert short(judged[ConditionType.UP_TO_DATE]) == ("True", "Current")
    assert short(judged[ConditionType.READY]) == ("True", "Available")
    assert short(judged[ConditionType.DEGRADED]) == ("True", "ApplyFailed")


def test_scaled_to_zero_is_current_once_the_older_pods_are_gone() -> None:
    assert short(verdict(observe([], deployment(replicas=0), desired_replicas=0))) == ("True", "Current")
    older = observe([answering(revision=OLD)], deployment(replicas=0), desired_replicas=0)
    assert short(verdict(older)) == ("False", "RollingOut")


def test_nothing_seen() -> None:
    assert short(verdict(observe(None))) == ("Unknown", "NotObserved")
    assert short(verdict(replace(observe([]), workload=None))) == ("Unknown", "NotObserved")
    assert short(verdict(replace(observe([]), workload=WorkloadFacts(exists=False)))) == ("False", "RollingOut")

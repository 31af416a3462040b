from __future__ import annotations

import pytest
from podbuilder import (
    answering,
    container,
    deleting,
    deployment,
    evicted,
    loading,
    patched,
    pod,
    refused,
    running,
    terminated,
    unschedulable,
    unseen,
    waiting,
)

from sglang_operator.status.facts import ContainerState
from sglang_operator.status.observation import observe_deployment, observe_pod


def test_a_pod_that_answers() -> None:
    facts = observe_pod(answering())
    assert (facts.name, facts.uid, facts.ip) == ("demo-7d9f6c5b8-x2x4k", "uid-demo-7d9f6c5b8-x2x4k", "10.244.1.7")
    assert (facts.revision, facts.active, facts.answers) == ("rev-a", True, True)
    assert facts.patch_result is not None
    assert (facts.patch_result.succeeded, facts.patch_result.release) == (True, "0.5.23")
    assert facts.extended_resources == (("nvidia.com/gpu", "8"),)
    assert facts.node_requirements == "nvidia.com/gpu.count > 7, nvidia.com/gpu.compute.major in (10, 12)"
    assert facts.startup_budget_seconds == 3600


def test_a_pod_that_nobody_has_touched() -> None:
    facts = observe_pod(unseen())
    assert facts.placement.scheduled is None
    assert facts.patch is not None
    assert facts.patch.state is ContainerState.UNSEEN
    assert not facts.answers


def test_a_pod_that_is_deleted_answers_no_more_although_its_condition_says_ready() -> None:
    facts = observe_pod(deleting(answering()))
    assert facts.ready
    assert not facts.active
    assert not facts.answers


def test_a_pod_that_its_node_threw_out_is_over() -> None:
    facts = observe_pod(evicted())
    assert facts.ended
    assert facts.failure_reason == "UnexpectedAdmissionError"


def test_the_result_of_a_failed_patch_stands_while_the_next_try_runs() -> None:
    failed = refused()["status"]["initContainerStatuses"][0]["lastState"]
    facts = observe_pod(pod(patch=container(running(), last=failed, restarts=4)))
    assert facts.patch_result is not None
    assert not facts.patch_result.succeeded


def test_the_result_of_a_successful_patch_does_not_stand_while_it_runs_again() -> None:
    success = patched()["state"]
    assert observe_pod(pod(patch=container(running(), last=success, restarts=1))).patch_result is None


@pytest.mark.parametrize(
    ("state", "restarts", "last", "ended_runs"),
    [
        (running(), 0, None, 0),
        (terminated(1), 0, None, 1),
        (running(), 1, terminated(1), 1),
        (waiting("CrashLoopBackOff"), 1, terminated(1), 2),
        (terminated(1), 1, terminated(1), 2),
        (running(), 2, terminated(1), 2),
    ],
)
def test_runs_are_counted_when_they_end(state: dict[str, object], restarts: int, last: object, ended_runs: int) -> None:
    engine = container(state, restarts=restarts, last=last)  # type: ignore[arg-type]
    assert observe_pod(pod(engine=engine)).engine.ended_runs == ended_runs


def test_selectors_and_alternatives_of_node_labels_are_all_told() -> None:
    manifest = loading()
    manifest["spec"]["nodeSelector"] = {"zone": "a"}
    terms = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms["nodeSelectorTerms"].append({"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]})
    assert observe_pod(manifest).node_requirements == (
        "zone = a, nvidia.com/gpu.count > 7, nvidia.com/gpu.compute.major in (10, 12) or spot absent"
    )


@pytest.mark.parametrize(
    "manifest", [{}, {"metadata": None, "spec": None, "status": None}, {"status": {"phase": "Pending"}}]
)
def test_holes_in_a_manifest_are_no_error(manifest: dict[str, object]) -> None:
    assert not observe_pod(manifest).answers
    assert observe_deployment(manifest).exists


def test_no_deployment() -> None:
    assert not observe_deployment(None).exists


def test_a_deployment_whose_spec_the_controller_has_not_seen() -> None:
    assert observe_deployment(deployment()).observed
    assert not observe_deployment(deployment(observed=False)).observed


def test_a_deployment_in_trouble() -> None:
    facts = observe_deployment(deployment(late=True, failure="exceeded quota: gpus"))
    assert facts.progress_deadline_exceeded
    assert facts.replica_failure == "exceeded quota: gpus"
    assert facts.revision == "rev-a"


def test_the_schedulers_words_are_kept() -> None:
    placement = observe_pod(unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")).placement
    assert (placement.scheduled, placement.reason) == (False, "Unschedulable")
    assert placement.message == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."

from __future__ import annotations

import pytest
from observing import judge, observe, short
from podbuilder import (
    answering,
    container,
    crash_back_off,
    creating,
    deleting,
    loading,
    patch_json,
    patched,
    patching,
    pod,
    refused,
    running,
    terminated,
    unschedulable,
    waiting,
)

from sglang_operator.api.reasons import ConditionType
from sglang_operator.api.v1alpha1 import Condition, Manifest


def verdict(*pods: Manifest, **changes: object) -> Condition:
    facts = {"desired_replicas": max(len(pods), 1), **changes}
    return judge(observe(pods, **facts))[ConditionType.PATCH_VERIFIED]


def test_every_pod_of_the_current_revision_proved_it() -> None:
    condition = verdict(loading("demo-a"), answering("demo-b"))
    assert short(condition) == ("True", "Patched")
    assert condition.message == "SGLang 0.5.23: patched, and its import checked, in 2 pods."


def test_two_releases_behind_one_tag_are_both_told() -> None:
    other = pod("demo-b", patch=patched(patch_json(release="0.5.22")))
    assert "SGLang 0.5.22 and 0.5.23: patched" in verdict(loading("demo-a"), other).message


def test_one_pod_that_has_not_ended_leaves_it_open() -> None:
    condition = verdict(answering("demo-a"), patching("demo-b"))
    assert short(condition) == ("Unknown", "PatchPending")
    assert condition.message == (
        "Pod demo-b: SGLang's sources are being patched and checked for less than 5 min. The patch is verified in 1 of "
        "2 pods."
    )


def test_one_pod_that_refuses_decides() -> None:
    condition = verdict(answering("demo-a"), refused("demo-b"), patching("demo-c"))
    assert short(condition) == ("False", "UnsupportedSource")
    assert condition.message.startswith("Pod demo-b: srt/server_args.py: found no place for the field")


def test_several_refusals_are_counted() -> None:
    assert "on 1 pod more" in verdict(refused("demo-a"), refused("demo-b")).message


@pytest.mark.parametrize("older", [answering("demo-old", revision="rev-old"), deleting(answering("demo-old"))])
def test_another_pods_success_never_speaks_for_the_current_revision(older: Manifest) -> None:
    assert short(verdict(older)) == ("Unknown", "PatchPending")
    assert short(verdict(older, refused())) == ("False", "UnsupportedSource")


def _faces_of_a_refusal() -> list[Manifest]:
    ended = terminated(4, "Error", patch_json(result="CheckFailed", reason="TorchABIMismatch", message="Rebuild."))
    name = "demo-7d9f6c5b8-x2x4k"
    return [
        pod(patch=container(ended)),
        pod(patch=container(crash_back_off("patch", name), last=ended, restarts=1)),
        pod(patch=container(running(seconds=3), last=ended, restarts=2)),
        pod(patch=container(ended, last=ended, restarts=2)),
    ]


def test_a_refusal_keeps_its_face_while_the_kubelet_tries_again() -> None:
    judged = {
        (condition.status, condition.reason, condition.message) for condition in map(verdict, _faces_of_a_refusal())
    }
    assert judged == {("False", "TorchABIMismatch", "Pod demo-7d9f6c5b8-x2x4k: Rebuild.")}


def test_a_memory_kill_in_the_import_check() -> None:
    killed = pod(patch=container(terminated(137, "OOMKilled"), restarts=0), memory_limit="256Mi")
    condition = verdict(killed)
    assert short(condition) == ("False", "ImportCheckOOMKilled")
    assert "256Mi" in condition.message


def test_what_stops_the_patch_container_from_starting_is_the_reason() -> None:
    image = pod(patch=container(waiting("ErrImagePull", "failed to resolve reference: not found")))
    secret = pod(patch=container(waiting("CreateContainerConfigError", 'secret "hf-token" not found')))
    assert short(verdict(image)) == ("Unknown", "ImagePullFailed")
    assert short(verdict(secret)) == ("Unknown", "ContainerConfigError")


@pytest.mark.parametrize(
    "manifest", [unschedulable("0/1 nodes are available: 1 Too many pods."), creating(), patching()]
)
def test_on_the_way_it_is_unknown(manifest: Manifest) -> None:
    assert short(verdict(manifest)) == ("Unknown", "PatchPending")


def test_without_speculation_there_is_nothing_to_patch() -> None:
    plain = answering(has_patch=False)
    assert short(verdict(plain, speculates=False)) == ("True", "PatchNotNeeded")
    assert short(verdict(speculates=False)) == ("True", "PatchNotNeeded")


def test_with_a_refused_spec_the_running_revision_is_judged() -> None:
    assert short(verdict(answering(), revision=None, desired_replicas=None)) == ("True", "Patched")


def test_no_pod_asked_for_and_nothing_seen() -> None:
    assert short(judge(observe([], desired_replicas=0))[ConditionType.PATCH_VERIFIED]) == ("Unknown", "ScaledToZero")
    assert short(judge(observe(None))[ConditionType.PATCH_VERIFIED]) == ("Unknown", "NotObserved")

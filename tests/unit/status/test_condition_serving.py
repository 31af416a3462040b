from __future__ import annotations

from datetime import timedelta

import pytest
from observing import judge, observe, short
from podbuilder import (
    NOW,
    ago,
    answering,
    container,
    crash_back_off,
    crashed,
    creating,
    deleting,
    evicted,
    loading,
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
from sglang_operator.status.diagnosis import CREATION_PATIENCE

NAME = "demo-7d9f6c5b8-x2x4k"


def verdict(*pods: Manifest, **changes: object) -> Condition:
    return judge(observe(pods, **changes))[ConditionType.SERVING]


def test_a_pod_of_any_revision_serves() -> None:
    assert verdict(answering()).message == "1 pod answers."
    condition = verdict(answering("demo-a"), answering("demo-old", revision="rev-old"), refused("demo-b"))
    assert short(condition) == ("True", "Serving")
    assert condition.message == "2 pods answer, 1 of them of an older revision."


@pytest.mark.parametrize("manifest", [deleting(answering()), evicted()])
def test_a_pod_on_its_way_out_does_not_serve(manifest: Manifest) -> None:
    assert short(verdict(manifest)) == ("False", "NotServing")


def test_a_pod_that_its_node_threw_out_is_told() -> None:
    assert "A pod ended as UnexpectedAdmissionError. Allocate failed due to" in verdict(evicted()).message


def unready(engine: Manifest, **changes: object) -> Manifest:
    return pod(patch=patched(), engine=engine, phase="Running", **changes)  # type: ignore[arg-type]


STAGES = [
    (unschedulable("0/1 nodes are available: 1 Too many pods."), "NotServing", "waits for a node."),
    (creating(), "Starting", "its containers are being made for less than 5 min"),
    (patching(minutes=6), "Starting", "patched and checked for 5 min"),
    (refused(), "NotServing", "srt/server_args.py"),
    (loading(minutes=12), "Starting", "the server has been loading for 10 min of 60 min allowed"),
    (unready(container(waiting("PodInitializing"))), "Starting", "its containers are being made"),
    (
        unready(container(running(minutes=40), started=True)),
        "NotServing",
        "doesn't answer its readiness probe",
    ),
    (
        unready(container(running(minutes=40), started=True, ready=True)),
        "NotServing",
        "the pod is not ready. containers with unready status: [engine].",
    ),
]


@pytest.mark.parametrize(("manifest", "reason", "told"), STAGES)
def test_each_stage_on_the_way_has_its_words(manifest: Manifest, reason: str, told: str) -> None:
    condition = verdict(manifest)
    assert short(condition) == ("False", reason)
    assert condition.message.startswith(f"No pod answers. Pod {NAME}: ")
    assert told in condition.message


NOT_FOUND = (
    'failed to pull and unpack image "docker.io/lmsysorg/sglang:v9": failed to resolve reference '
    '"docker.io/lmsysorg/sglang:v9": docker.io/lmsysorg/sglang:v9: not found'
)
IMAGE_TROUBLE = [
    ("ErrImagePull", f"rpc error: code = NotFound desc = {NOT_FOUND}", "Check the name and tag in engine.image."),
    ("ErrImagePull", NOT_FOUND, "Check the name and tag in engine.image."),
    (
        "ImagePullBackOff",
        f'Back-off pulling image "docker.io/lmsysorg/sglang:v9": ErrImagePull: {NOT_FOUND}',
        "Check the name and tag in engine.image.",
    ),
    ("ImagePullBackOff", 'Back-off pulling image "docker.io/lmsysorg/sglang:v9"', "that the node reaches the registry"),
    (
        "ErrImagePull",
        "pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed",
        "podTemplate.imagePullSecrets",
    ),
    ("ErrImageNeverPull", 'Container image "x:y" is not present with pull policy of Never', "engine.imagePullPolicy"),
    (
        "InvalidImageName",
        'Failed to apply default image tag "X Y": couldn\'t parse image name',
        "Correct engine.image.",
    ),
    ("RegistryUnavailable", "image pull failed for x:y because the registry is unavailable", "reaches the registry"),
]


@pytest.mark.parametrize(("waiting_reason", "message", "told"), IMAGE_TROUBLE)
@pytest.mark.parametrize("place", ["patch", "engine"])
def test_an_image_that_cannot_be_pulled(place: str, waiting_reason: str, message: str, told: str) -> None:
    stuck = container(waiting(waiting_reason, message))
    condition = verdict(pod(patch=stuck) if place == "patch" else pod(patch=patched(), engine=stuck))
    assert short(condition) == ("False", "ImagePullFailed")
    assert told in condition.message


def test_the_pause_between_two_pulls_has_the_same_words_as_the_failure() -> None:
    texts = {verdict(pod(patch=container(waiting(reason, text)))).message for reason, text, _ in IMAGE_TROUBLE[:3]}
    assert len(texts) == 1


def test_a_pause_that_names_no_cause_keeps_the_cause_that_was_known() -> None:
    failure = observe([pod(patch=container(waiting("ErrImagePull", NOT_FOUND)))])
    pause = observe([pod(patch=container(waiting("ImagePullBackOff", 'Back-off pulling image "x:y"')))])
    known = judge(failure)
    after = judge(pause, tuple(known.values()), now=NOW + timedelta(minutes=3))
    assert after == known
    assert NOT_FOUND in after[ConditionType.READY].message


CONFIG_TROUBLE = [
    ("CreateContainerConfigError", 'secret "hf-token" not found', "Create it"),
    ("CreateContainerConfigError", "couldn't find key HF_TOKEN in Secret default/hf-token", "Create it"),
    ("CreateContainerConfigError", 'configmap "demo-threshold" not found', "Create it"),
    (
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root (pod: x, container: engine)",
        "podTemplate",
    ),
    ("CreateContainerError", "failed to generate container spec: path is not shared", "podTemplate"),
]


@pytest.mark.parametrize(("waiting_reason", "message", "told"), CONFIG_TROUBLE)
def test_a_container_that_cannot_be_made(waiting_reason: str, message: str, told: str) -> None:
    condition = verdict(pod(patch=container(waiting(waiting_reason, message))))
    assert short(condition) == ("False", "ContainerConfigError")
    assert message in condition.message
    assert told in condition.message


TRACEBACK = "Traceback (most recent call last):\n  File ...\nRuntimeError: weights do not fit the config"


def test_the_first_crash_is_a_restart_and_the_second_a_loop() -> None:
    once = crashed(terminated(1, "Error", TRACEBACK))
    assert short(verdict(once)) == ("False", "Starting")
    assert "Its last run ended with code 1." in verdict(once).message
    again = crashed(running(seconds=5), last=terminated(1, "Error", TRACEBACK), restarts=1)
    assert short(verdict(again)) == ("False", "Starting")
    assert (
        "less than 5 min of 60 min allowed (engine.startupTimeoutSeconds). Its last run ended with code 1."
        in verdict(again).message
    )
    assert short(verdict(crashed(terminated(1, "Error", TRACEBACK), restarts=1))) == ("False", "CrashLoop")


def test_a_crash_loop_keeps_its_face_while_the_kubelet_tries_again() -> None:
    end = terminated(1, "Error", TRACEBACK)
    faces = [
        crashed(end, restarts=1),
        crashed(crash_back_off("engine", NAME), last=end, restarts=1),
        crashed(running(seconds=5), last=end, restarts=2),
        crashed(crash_back_off("engine", NAME, "5m0s"), last=end, restarts=7),
    ]
    judged = {(item.status, item.reason, item.message) for item in map(verdict, faces)}
    assert len(judged) == 1
    assert judged.pop()[:2] == ("False", "CrashLoop")


def test_a_log_that_differs_in_numbers_only_is_no_news() -> None:
    def looping(message: str) -> tuple[Condition, ...]:
        manifest = crashed(crash_back_off("engine", NAME), last=terminated(1, "Error", message), restarts=3)
        return tuple(judge(observe([manifest]), known, now=NOW + timedelta(hours=1)).values())

    known: tuple[Condition, ...] = ()
    known = looping("[2026-03-01 11:58:02] pid 41 CUDA error at 0x7f10")
    assert looping("[2026-03-01 12:09:33] pid 977 CUDA error at 0x7fa4") == known
    assert looping("[2026-03-01 12:19:33] pid 977 NCCL error") != known


def test_a_server_that_ran_long_and_fell_is_no_loop() -> None:
    month_ago = terminated(1, "Error", "device lost", ran_seconds=30 * 86_400)
    condition = verdict(crashed(running(minutes=2), last=month_ago, restarts=5))
    assert short(condition) == ("False", "Starting")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("NCCL WARN failed to extend /dev/shm/nccl-8fXq2k to 33030532 bytes", "engine.sharedMemorySize"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "--mem-fraction-static"),
        ("OSError: You are trying to access a gated repo.", "model.tokenSecretRef"),
        ("launch_server.py: error: unrecognized arguments: --tpsize", "engine.args"),
        ("OSError: [Errno 98] Address already in use", "engine.port"),
        ("RuntimeError: No CUDA GPUs are available", "podTemplate.runtimeClassName"),
        ("something else", "kubectl logs --previous"),
    ],
)
def test_known_last_words_give_the_next_step(message: str, told: str) -> None:
    looping = crashed(crash_back_off("engine", NAME), last=terminated(1, "Error", message), restarts=4)
    assert told in verdict(looping).message
    assert message in verdict(looping).message


def test_last_words_never_show_an_api_key() -> None:
    words = "server_args=ServerArgs(api_key='hunter2', admin_api_key='swordfish')\nValueError: no such model"
    condition = verdict(crashed(crash_back_off("engine", NAME), last=terminated(1, "Error", words), restarts=4))
    assert "api_key=…, admin_api_key=…" in condition.message
    assert condition.message.endswith("ValueError: no such model")


def test_a_server_killed_for_memory() -> None:
    loading_again = crashed(running(seconds=20), last=terminated(137, "OOMKilled"), restarts=1, memory_limit="256Gi")
    condition = verdict(loading_again)
    assert short(condition) == ("False", "OOMKilled")
    assert "its limit of 256Gi" in condition.message
    assert "engine.resources.memoryLimit" in condition.message


def test_a_load_that_outlasts_its_budget_is_told_with_the_field() -> None:
    stopped = terminated(137, "Error", "", ran_seconds=3630)
    condition = verdict(crashed(running(minutes=3), last=stopped, restarts=1))
    assert short(condition) == ("False", "StartStalled")
    assert "within 60 min" in condition.message
    assert "engine.startupTimeoutSeconds" in condition.message


def test_a_crash_whose_times_are_not_known_counts_as_early() -> None:
    end = terminated(137)
    del end["terminated"]["startedAt"], end["terminated"]["finishedAt"]
    assert short(verdict(crashed(crash_back_off("engine", NAME), last=end, restarts=4))) == ("False", "CrashLoop")


def test_a_long_run_that_was_killed_later_is_no_stalled_start() -> None:
    killed = terminated(137, "Error", "", ran_seconds=7200)
    assert short(verdict(crashed(running(minutes=3), last=killed, restarts=1))) == ("False", "Starting")


def test_containers_that_are_never_made_need_a_person() -> None:
    stuck = creating()
    later = judge(observe([stuck]), now=NOW + CREATION_PATIENCE)
    assert short(later[ConditionType.SERVING]) == ("False", "StartStalled")
    assert short(later[ConditionType.DEGRADED]) == ("True", "StartStalled")


def test_a_server_that_stopped_answering_needs_a_person_after_a_while() -> None:
    hanging = container(running(minutes=40), started=True)
    fresh = judge(observe([unready(hanging, ready_since=ago(minutes=9))]))
    old = judge(observe([unready(hanging, ready_since=ago(minutes=10))]))
    assert short(fresh[ConditionType.DEGRADED]) == ("False", "AsExpected")
    assert short(old[ConditionType.DEGRADED]) == ("True", "NotServing")


def test_the_most_telling_pod_speaks() -> None:
    pods = [
        loading("demo-a"),
        pod("demo-b", patch=container(waiting("ErrImagePull", NOT_FOUND))),
        creating("demo-c"),
    ]
    assert short(verdict(*pods)) == ("False", "ImagePullFailed")


def test_no_pod_asked_for_and_nothing_seen() -> None:
    assert short(verdict(desired_replicas=0)) == ("False", "ScaledToZero")
    assert short(verdict()) == ("False", "NotServing")
    assert short(judge(observe(None))[ConditionType.SERVING]) == ("Unknown", "NotObserved")

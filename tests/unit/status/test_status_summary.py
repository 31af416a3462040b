from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from observing import SELECTOR, URL, decision, in_step, observe
from podbuilder import (
    NOW,
    answering,
    creating,
    deleting,
    deployment,
    evicted,
    loading,
    patch_json,
    patched,
    pod,
)

from sglang_operator.api.v1alpha1 import InferenceServiceStatus, Manifest, ThresholdSource
from sglang_operator.status.observation import Observation, PodThreshold, SpecRefusal
from sglang_operator.status.summary import build_status


def healthy() -> InferenceServiceStatus:
    pods = [answering("demo-a"), answering("demo-b")]
    observation = observe(pods, deployment(replicas=2), desired_replicas=2, thresholds=in_step(pods))
    return build_status(observation, None, 3, NOW)


def ready(status: InferenceServiceStatus) -> tuple[str, str]:
    condition = next(condition for condition in status.conditions if condition.type == "Ready")
    return condition.status, condition.reason


def test_every_field_of_a_healthy_service() -> None:
    status = healthy()
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (2, 2, 2)
    assert (status.selector, status.url) == (SELECTOR, URL)
    assert (status.revision, status.patch_digest, status.engine_release) == ("rev-a", "9b" * 32, "0.5.23")
    assert (ready(status), status.observed_generation) == (("True", "Available"), 3)
    assert status.threshold is not None
    assert (status.threshold.batch_size, status.threshold.source) == (32, ThresholdSource.SPEC)
    assert (status.threshold.decided_at, status.threshold.synced_pods) == ("2026-03-01T12:00:00Z", 2)


def test_only_pods_that_are_meant_to_run_are_counted() -> None:
    pods = [
        answering("demo-a"),
        answering("demo-old", revision="rev-old"),
        loading("demo-b"),
        deleting(answering("demo-c")),
        evicted("demo-d"),
    ]
    status = build_status(observe(pods, desired_replicas=2), None, 1, NOW)
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (3, 2, 2)


def test_without_a_list_of_pods_the_counts_come_from_the_deployment_else_from_before() -> None:
    deployed = build_status(observe(None, deployment(replicas=5)), None, 1, NOW)
    assert (deployed.replicas, deployed.updated_replicas) == (5, 5)
    before = build_status(replace(observe(None), workload=None), healthy(), 3, NOW)
    assert (before.replicas, before.ready_replicas, before.updated_replicas) == (2, 2, 2)
    first = build_status(replace(observe(None), workload=None), None, 3, NOW)
    assert (first.replicas, first.ready_replicas) == (0, 0)


def refused_spec(pods: list[Manifest]) -> Observation:
    """What a pass knows when the spec can't be rendered."""
    return observe(
        pods,
        revision=None,
        url=None,
        patch_digest=None,
        desired_replicas=None,
        speculates=None,
        decision=None,
        spec_error=SpecRefusal(reason="InvalidSpec", message="spec.gpus.count: must be at most 8."),
    )


def test_what_is_not_known_now_keeps_its_value() -> None:
    before = healthy()
    status = build_status(refused_spec([creating()]), before, 4, NOW)
    for field in ("revision", "url", "patch_digest", "engine_release", "threshold"):
        assert getattr(status, field) == getattr(before, field)
    assert (ready(status), status.observed_generation) == (("False", "InvalidSpec"), 4)


def test_the_first_visit_of_a_refused_spec() -> None:
    status = build_status(refused_spec([]), None, 1, NOW)
    assert (status.revision, status.url, status.threshold, status.engine_release) == (None, None, None, None)
    assert len(status.conditions) == 9


def test_the_release_is_the_current_pods_own_word_first() -> None:
    newer = pod("demo-b", patch=patched(patch_json(release="0.5.24")))
    older = answering("demo-old", revision="rev-old")
    assert build_status(observe([older, newer]), None, 1, NOW).engine_release == "0.5.24"
    assert build_status(observe([older]), None, 1, NOW).engine_release == "0.5.23"


def test_the_release_of_unpatched_servers_is_their_own_word() -> None:
    plain = answering(has_patch=False)
    told = PodThreshold(pod="demo-7d9f6c5b8-x2x4k", values=(32,), release="0.5.20")
    assert build_status(observe([plain], thresholds=(told,)), None, 1, NOW).engine_release == "0.5.20"


def test_without_speculation_there_is_no_threshold() -> None:
    assert build_status(observe([answering()], speculates=False), healthy(), 3, NOW).threshold is None


def test_only_pods_that_answer_with_the_value_on_every_rank_are_in_step() -> None:
    pods = [answering("demo-a"), answering("demo-b"), answering("demo-c"), loading("demo-d")]
    thresholds = (
        PodThreshold(pod="demo-a", values=(32, 32)),
        PodThreshold(pod="demo-b", values=(32, 16)),
        PodThreshold(pod="demo-c", values=None),
        PodThreshold(pod="demo-d", values=(32, 32)),
        PodThreshold(pod="demo-gone", values=(32, 32)),
    )
    status = build_status(observe(pods, desired_replicas=4, thresholds=thresholds), None, 1, NOW)
    assert status.threshold is not None
    assert status.threshold.synced_pods == 1


def off_paths(*told: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
    pods = [answering(f"demo-{number}") for number in range(len(told))]
    thresholds = tuple(
        replace(item, off_path=path, off_path_reason=reason)
        for item, (path, reason) in zip(in_step(pods), told, strict=True)
    )
    status = build_status(observe(pods, desired_replicas=len(pods), thresholds=thresholds), None, 1, NOW)
    assert status.threshold is not None
    return status.threshold.off_path, status.threshold.off_path_reason


def test_the_off_path_is_the_servers_own_word() -> None:
    assert off_paths((None, None)) == (None, None)
    assert off_paths(("Decode", None), ("Decode", None)) == ("Decode", None)
    assert off_paths(("ZeroStep", "a\nmamba model"), ("ZeroStep", "a mamba model")) == ("ZeroStep", "a mamba model")
    mixed = off_paths(("ZeroStep", "why"), ("Decode", None), ("ZeroStep", "other"))
    assert mixed == ("Decode, ZeroStep", "other; why")
    path, reason = off_paths(("x" * 100, "ä" * 2000))
    assert (len(path or ""), len((reason or "").encode())) == (64, 1023)


def test_the_off_path_stays_while_no_pod_answers() -> None:
    pods = [answering()]
    told = tuple(replace(item, off_path="ZeroStep", off_path_reason="why") for item in in_step(pods))
    before = build_status(observe(pods, thresholds=told), None, 1, NOW)
    after = build_status(observe([loading()]), before, 1, NOW)
    assert after.threshold is not None
    assert (after.threshold.off_path, after.threshold.off_path_reason) == ("ZeroStep", "why")


def test_a_long_decision_message_is_cut() -> None:
    wordy = decision(message="ä" * 3000)
    status = build_status(observe([answering()], decision=wordy), None, 1, NOW)
    assert status.threshold is not None
    assert len(status.threshold.message.encode()) <= 1024


def test_an_idle_service_has_the_same_bytes_for_ever() -> None:
    pods = [answering("demo-a"), answering("demo-b")]
    observation = observe(pods, deployment(replicas=2), desired_replicas=2, thresholds=in_step(pods))
    status = build_status(observation, None, 3, NOW)
    first = status.model_dump_json(by_alias=True)
    for seconds in range(0, 7 * 86_400, 3_600):
        status = build_status(observation, status, 3, NOW + timedelta(seconds=seconds))
        assert status.model_dump_json(by_alias=True) == first


def test_a_starting_service_is_written_once_in_five_minutes_at_most() -> None:
    observation = observe([loading(minutes=0)])
    status = build_status(observation, None, 1, NOW)
    writes = 0
    for seconds in range(0, 3600, 10):
        again = build_status(observation, status, 1, NOW + timedelta(seconds=seconds))
        writes += again != status
        status = again
    assert writes == 3600 // 300 - 1

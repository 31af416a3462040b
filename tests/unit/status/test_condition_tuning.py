"""`MetricsAvailable` and `ThresholdSynced`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from observing import decision, in_step, judge, observe, short
from podbuilder import NOW, answering, deleting, loading

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition, OffPath
from sglang_operator.status.observation import MetricsFacts, Observation, PodThreshold, ThresholdErrorKind

PODS = [answering("demo-a"), answering("demo-b")]
LOST = [
    (Reason.METRICS_UNREACHABLE, "Check its address"),
    (Reason.METRICS_INVALID, "Check that the address is a Prometheus"),
    (Reason.NO_DATA, "Check that it scrapes them"),
    (Reason.STALE, "still scrapes them"),
    (Reason.NOT_CONFIGURED, "speculation.disableThreshold.mode"),
]


def metrics(facts: MetricsFacts | None, **changes: object) -> Condition:
    observation = observe(PODS, desired_replicas=2, metrics=facts, **changes)
    return judge(observation)[ConditionType.METRICS_AVAILABLE]


@pytest.mark.parametrize(("reason", "told"), LOST)
def test_missing_metrics_have_cause_next_step_and_last_good_time(reason: Reason, told: str) -> None:
    condition = metrics(MetricsFacts(reason=reason, last_good_at=NOW))
    assert short(condition) == ("False", reason.value)
    assert told in condition.message
    assert condition.message.endswith("The threshold stays as it is. Last good sample: 2026-03-01T12:00:00Z.")
    named = metrics(MetricsFacts(reason=reason, message="Prometheus said 503; see its log", last_good_at=NOW))
    assert named.message.startswith("Prometheus said 503; see its log. The threshold stays as it is.")


def test_a_long_cause_does_not_push_out_the_last_good_time() -> None:
    condition = metrics(MetricsFacts(reason=Reason.METRICS_INVALID, message="<html>" * 500, last_good_at=NOW))
    assert condition.message.endswith("Last good sample: 2026-03-01T12:00:00Z.")


def test_the_age_of_a_stale_sample_ticks_without_a_write() -> None:
    def stale(age: int, known: Sequence[Condition]) -> tuple[Condition, ...]:
        facts = MetricsFacts(reason=Reason.STALE, message=f"The newest sample is {age} s old, more than 60 s.")
        return tuple(judge(observe(PODS, desired_replicas=2, metrics=facts), known).values())

    known = stale(70, ())
    assert stale(80, known) == known


def test_fresh_metrics_tell_no_time_that_would_tick() -> None:
    condition = metrics(MetricsFacts(reason=Reason.FRESH, message="age 4 s", last_good_at=NOW))
    assert short(condition) == ("True", "Fresh")
    assert condition.message == "The pods' load metrics are recent."


def test_metrics_that_nobody_asks_for_are_not_missing() -> None:
    assert short(metrics(MetricsFacts(reason=Reason.NOT_USED))) == ("True", "NotUsed")
    assert short(metrics(MetricsFacts(reason=Reason.NO_DATA), speculates=False)) == ("True", "NotUsed")
    assert short(metrics(None)) == ("Unknown", "NotObserved")


@pytest.mark.parametrize("reason", [Reason.NO_DATA, Reason.STALE])
def test_without_pods_no_data_is_no_news(reason: Reason) -> None:
    observation = observe([loading()], metrics=MetricsFacts(reason=reason))
    assert short(judge(observation)[ConditionType.METRICS_AVAILABLE]) == ("Unknown", "NoPods")


def test_without_pods_a_dead_prometheus_is_still_told() -> None:
    observation = observe([loading()], metrics=MetricsFacts(reason=Reason.METRICS_UNREACHABLE))
    assert short(judge(observation)[ConditionType.METRICS_AVAILABLE]) == ("False", "MetricsUnreachable")


def synced(*thresholds: PodThreshold, **changes: object) -> Condition:
    facts: dict[str, object] = {"desired_replicas": 2, "thresholds": thresholds, **changes}
    return judge(observe(PODS, **facts))[ConditionType.THRESHOLD_SYNCED]


def test_every_rank_of_every_pod_was_read_back() -> None:
    condition = synced(*in_step(PODS, ranks=8))
    assert short(condition) == ("True", "Synced")
    assert condition.message == "Every rank of each of 2 pods was read back with 32."


def test_a_pod_of_an_older_revision_must_follow_too() -> None:
    older = [*PODS, answering("demo-old", revision="rev-old")]
    observation = observe(older, desired_replicas=2, thresholds=in_step(PODS))
    condition = judge(observation)[ConditionType.THRESHOLD_SYNCED]
    assert short(condition) == ("False", "Syncing")
    assert "demo-old: not asked yet" in condition.message


OUT_OF_STEP = [
    (PodThreshold(pod="demo-b", values=(16,)), "Syncing", "demo-b: holds 16, 32 is wanted"),
    (PodThreshold(pod="demo-b", values=(32, 16, 32)), "Syncing", "demo-b: rank 1 holds 16 of 3 ranks, 32 is wanted"),
    (PodThreshold(pod="demo-b", values=()), "Syncing", "demo-b: no rank told its value"),
    (PodThreshold(pod="demo-b", values=None), "Syncing", "demo-b: no rank told its value"),
    (
        PodThreshold(pod="demo-b", values=(32,), active=False, inactive_reason="topk is 4"),
        "ThresholdInactive",
        "demo-b: topk is 4",
    ),
    (
        PodThreshold(pod="demo-b", error_kind=ThresholdErrorKind.UNREACHABLE, error_message="no reply in 5 s"),
        "EngineUnreachable",
        "demo-b: no reply in 5 s",
    ),
    (
        PodThreshold(pod="demo-b", values=(16,), error_kind=ThresholdErrorKind.REFUSED, error_message="kept 16"),
        "EngineRefused",
        "demo-b: kept 16",
    ),
    (
        PodThreshold(pod="demo-b", error_kind=ThresholdErrorKind.UNAUTHORIZED, error_message="HTTP 401"),
        "LiveUpdateUnauthorized",
        "kubectl rollout restart",
    ),
    (
        PodThreshold(pod="demo-b", error_kind=ThresholdErrorKind.NO_KEY, error_message="Secret a/b does not exist"),
        "APIKeyUnavailable",
        "demo-b: Secret a/b does not exist",
    ),
    (
        PodThreshold(pod="demo-b", error_kind=ThresholdErrorKind.KEY_NOT_READ, error_message="GET: HTTP 500"),
        "Syncing",
        "demo-b: GET: HTTP 500",
    ),
    (PodThreshold(pod="demo-b", values=(32,), probe_permilles=(20,)), "Syncing", "demo-b: does not probe as decided"),
]


@pytest.mark.parametrize(("threshold", "reason", "told"), OUT_OF_STEP)
def test_a_pod_out_of_step_is_named_with_its_trouble(threshold: PodThreshold, reason: str, told: str) -> None:
    condition = synced(*in_step(PODS[:1]), threshold)
    assert short(condition) == ("False", reason)
    assert told in condition.message
    assert condition.message.startswith("1 of 2 pods not in step.")


def test_a_server_without_probing_is_in_step_by_its_threshold_alone() -> None:
    probing = replace(decision(), probe_permille=20)
    able, old = (PodThreshold(pod="demo-a", values=(32,), probe_permilles=(20,)), *in_step(PODS[1:]))
    assert short(synced(able, old, decision=probing)) == ("True", "Synced")
    assert short(synced(replace(able, probe_permilles=(20, 0)), old, decision=probing)) == ("False", "Syncing")


@pytest.mark.parametrize("asked", [OffPath.AUTO, OffPath.ZERO_STEP, None])
def test_an_off_path_that_nobody_asked_for_is_no_news(asked: OffPath | None) -> None:
    pods = tuple(replace(item, off_path="ZeroStep", off_path_reason="why") for item in in_step(PODS))
    assert synced(*pods, off_path=asked).message == "Every rank of each of 2 pods was read back with 32."


def test_a_decode_step_that_was_asked_for_and_is_not_had_is_told_with_the_servers_reason() -> None:
    able, unable = in_step(PODS)
    pods = (replace(able, off_path="Decode"), replace(unable, off_path="ZeroStep", off_path_reason="a mamba model"))
    condition = synced(*pods, off_path=OffPath.DECODE)
    assert short(condition) == ("True", "Synced")
    assert condition.message.endswith(
        "speculation.offPath asks for Decode, which does not run in demo-b (ZeroStep): a mamba model."
    )
    assert "offPath" not in synced(pods[0], replace(pods[1], off_path="Decode"), off_path=OffPath.DECODE).message


def test_an_older_pod_was_never_asked_for_the_decode_step() -> None:
    older = [*PODS, answering("demo-old", revision="rev-old")]
    thresholds = [replace(item, off_path="Decode") for item in in_step(older)]
    thresholds[2] = replace(thresholds[2], off_path="ZeroStep", off_path_reason="0.5.12 has none")
    observation = observe(older, desired_replicas=2, thresholds=tuple(thresholds), off_path=OffPath.DECODE)
    assert "offPath" not in judge(observation)[ConditionType.THRESHOLD_SYNCED].message


def test_the_worst_reason_wins_and_its_pods_come_first() -> None:
    pods = [answering(f"demo-{number}") for number in range(9)]
    thresholds = [PodThreshold(pod=f"demo-{number}", values=(16,)) for number in range(8)]
    thresholds.append(PodThreshold(pod="demo-8", error_kind=ThresholdErrorKind.UNAUTHORIZED, error_message="HTTP 401"))
    observation = observe(pods, desired_replicas=9, thresholds=tuple(thresholds))
    condition = judge(observation)[ConditionType.THRESHOLD_SYNCED]
    assert short(condition) == ("False", "LiveUpdateUnauthorized")
    assert condition.message.endswith(
        "demo-8: HTTP 401; demo-0: holds 16, 32 is wanted; demo-1: holds 16, 32 is wanted; demo-2: holds 16, 32 is "
        "wanted; demo-3: holds 16, 32 is wanted; and 4 more."
    )


def nobody(**changes: object) -> Observation:
    return observe([loading(), deleting(answering("demo-a"))], thresholds=in_step(PODS), **changes)


def test_without_pods_that_answer_there_is_nobody_to_ask() -> None:
    condition = judge(nobody())[ConditionType.THRESHOLD_SYNCED]
    assert short(condition) == ("Unknown", "NoPods")
    assert "start with 32" in condition.message


def test_without_speculation_nothing_is_asked_for() -> None:
    assert short(synced(speculates=False, decision=None)) == ("True", "NotUsed")
    assert short(synced(decision=None)) == ("Unknown", "NotObserved")


def test_a_new_decision_is_not_in_step_until_read_back() -> None:
    assert short(synced(*in_step(PODS, 32), decision=decision(16))) == ("False", "Syncing")
    assert short(synced(*in_step(PODS, 16), decision=decision(16))) == ("True", "Synced")

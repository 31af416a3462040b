"""What must hold for every observation there can be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from observing import decision, observe
from podbuilder import (
    NOW,
    answering,
    container,
    crash_back_off,
    crashed,
    creating,
    deleting,
    deployment,
    evicted,
    loading,
    patching,
    pod,
    refused,
    running,
    terminated,
    unschedulable,
    unseen,
    waiting,
)

from sglang_operator.api.explanations import CONDITIONS
from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition, InferenceServiceStatus, Manifest, OffPath
from sglang_operator.status.observation import (
    ApplyFailure,
    MetricsFacts,
    Observation,
    PodThreshold,
    SpecRefusal,
    ThresholdErrorKind,
)
from sglang_operator.status.summary import build_status, events

Draft = Callable[[str], Manifest]
# What texts do to single functions is tested there; here a few of every kind keep the search fast.
WORDS = st.sampled_from(
    [
        "",
        "not found",
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        "untolerated taint {a: b}",
        "no\x00body\ud800",
        "世界 " * 1500,
        "line of a log\n" * 300,
    ]
)
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
METRIC_REASONS = [
    Reason.FRESH,
    Reason.NOT_USED,
    Reason.NOT_CONFIGURED,
    Reason.METRICS_UNREACHABLE,
    Reason.METRICS_INVALID,
    Reason.NO_DATA,
    Reason.STALE,
]


STAGES: tuple[Callable[[str, str, str], Manifest], ...] = (
    lambda name, revision, words: unseen(name, revision=revision),
    lambda name, revision, words: unschedulable(words, name, revision=revision),
    lambda name, revision, words: creating(name, revision=revision),
    lambda name, revision, words: pod(name, revision=revision, patch=container(waiting("ImagePullBackOff", words))),
    lambda name, revision, words: patching(name, revision=revision),
    lambda name, revision, words: refused(name, revision=revision, message=words),
    lambda name, revision, words: loading(name, revision=revision, minutes=len(words) % 120),
    lambda name, revision, words: crashed(
        crash_back_off("engine", name), last=terminated(1, "Error", words), restarts=3, name=name, revision=revision
    ),
    lambda name, revision, words: crashed(
        running(seconds=5), last=terminated(137, "OOMKilled"), restarts=1, name=name, revision=revision
    ),
    lambda name, revision, words: answering(name, revision=revision),
    lambda name, revision, words: evicted(name, revision=revision),
)


def stand(stage: Callable[[str, str, str], Manifest], revision: str, words: str, is_deleted: bool) -> Draft:
    """A pod that only lacks its name."""

    def named(name: str) -> Manifest:
        manifest = stage(name, revision, words)
        return deleting(manifest) if is_deleted else manifest

    return named


def number(drafts: list[Draft] | None) -> list[Manifest] | None:
    return None if drafts is None else [draft(f"demo-{index}") for index, draft in enumerate(drafts)]


# Strategies are made once: to make them anew for each example takes longer than to judge it.
# Pods that answer come often, or hardly an example would ever be ready.
DRAFTS = st.builds(
    stand,
    st.sampled_from([*STAGES, *(STAGES[9],) * 10]),
    st.sampled_from(["rev-a", "rev-a", "rev-old"]),
    WORDS,
    st.sampled_from([False, False, False, True]),
)
PODS = st.one_of(st.none(), st.just([]), *(st.lists(DRAFTS, min_size=1, max_size=3),) * 4).map(number)
WORKLOADS = st.builds(
    deployment,
    revision=st.sampled_from(["rev-a", "rev-a", "rev-old"]),
    replicas=st.integers(0, 3),
    observed=st.booleans(),
    late=st.booleans(),
    failure=st.just("") | WORDS,
)
VALID_SPECS = st.fixed_dictionaries(
    {
        "desired_replicas": st.sampled_from([1, 1, 1, 2, 3, 0]),
        "revision": st.just("rev-a"),
        "speculates": st.booleans(),
        "off_path": st.sampled_from(OffPath),
    }
)
REFUSED_SPECS = st.fixed_dictionaries(
    {
        "desired_replicas": st.none(),
        "revision": st.none(),
        "speculates": st.none(),
        "spec_error": st.builds(SpecRefusal, reason=st.sampled_from(["InvalidSpec", "Novel"]), message=WORDS),
    }
)
SPECS = st.one_of(VALID_SPECS, VALID_SPECS, VALID_SPECS, REFUSED_SPECS)
REST = st.fixed_dictionaries(
    {
        "apply_error": st.none()
        | st.none()
        | st.builds(
            ApplyFailure,
            reason=st.sampled_from([Reason.APPLY_FAILED, Reason.OPERATOR_FORBIDDEN]),
            message=WORDS,
            boot_value_only=st.booleans(),
        ),
        "decision": st.none() | st.builds(decision, st.sampled_from([16, 32]), WORDS),
        "thresholds": st.lists(
            st.builds(
                PodThreshold,
                pod=st.sampled_from(["demo-0", "demo-1", "demo-9"]),
                values=st.sampled_from([None, (), (32,), (32, 32), (16, 32)]),
                probe_permilles=st.sampled_from([None, (0,), (0, 20)]),
                off_path=st.sampled_from([None, "Decode", "ZeroStep"]),
                off_path_reason=st.none() | WORDS,
                active=st.booleans(),
                inactive_reason=st.none() | WORDS,
                error_kind=st.sampled_from([None, *ThresholdErrorKind]),
                error_message=WORDS,
            ),
            max_size=3,
            unique_by=lambda item: item.pod,
        ).map(tuple),
        "metrics": st.none() | st.builds(MetricsFacts, reason=st.sampled_from(METRIC_REASONS), message=WORDS),
    }
)
OBSERVATIONS = st.builds(
    lambda pods, workload, spec, rest: observe(pods, workload, **spec, **rest), PODS, WORKLOADS, SPECS, REST
)


BORROWED = {
    ConditionType.UP_TO_DATE: {Reason.INVALID_SPEC, Reason.APPLY_FAILED, Reason.OPERATOR_FORBIDDEN},
    # The two summaries speak with the reason of what they sum up.
    ConditionType.READY: set(Reason),
    ConditionType.DEGRADED: set(Reason),
}
ALLOWED = {kind: {Reason.NOT_OBSERVED, *CONDITIONS[kind].reasons} | BORROWED.get(kind, set()) for kind in ConditionType}


def by_type(status: InferenceServiceStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


@CALM
@given(observation=OBSERVATIONS)
def test_all_conditions_are_there_complete_and_in_order(observation: Observation) -> None:
    status = build_status(observation, None, 7, NOW)
    assert [condition.type for condition in status.conditions] == [kind.value for kind in ConditionType]
    for condition in status.conditions:
        assert condition.observed_generation == 7
        assert Reason(condition.reason) in ALLOWED[ConditionType(condition.type)]
        assert condition.message.strip()
        assert len(condition.message.encode()) <= 1024
    assert InferenceServiceStatus.model_validate(status.model_dump(by_alias=True)) == status


@CALM
@given(before=OBSERVATIONS, after=OBSERVATIONS, minutes=st.integers(0, 60))
def test_a_transition_time_moves_with_the_status_and_only_then(
    before: Observation, after: Observation, minutes: int
) -> None:
    first = build_status(before, None, 1, NOW)
    moment = NOW + timedelta(minutes=minutes, hours=1)
    second = build_status(after, first, 2, moment)
    for old, new in zip(first.conditions, second.conditions, strict=True):
        moved = new.last_transition_time != old.last_transition_time
        assert moved is (new.status != old.status)


@CALM
@given(before=OBSERVATIONS, after=OBSERVATIONS)
def test_the_same_facts_twice_give_an_equal_status_and_no_event(before: Observation, after: Observation) -> None:
    first = build_status(after, build_status(before, None, 1, NOW), 1, NOW)
    second = build_status(after, first, 1, NOW)
    assert second == first
    assert events(first, second) == ()


@CALM
@given(before=OBSERVATIONS, after=OBSERVATIONS)
def test_ready_is_never_true_by_an_older_or_missing_pod(before: Observation, after: Observation) -> None:
    status = build_status(after, build_status(before, None, 1, NOW), 1, NOW)
    if by_type(status)["Ready"].status != "True":
        return
    assert after.spec_error is None
    assert after.desired is not None
    assert 1 <= after.desired <= sum(1 for item in after.current_pods if item.answers)
    assert not after.older_pods
    assert by_type(status)["PatchVerified"].status == "True"
    assert by_type(status)["UpToDate"].status == "True"


@CALM
@given(observation=OBSERVATIONS)
def test_serving_is_true_exactly_when_a_pod_answers(observation: Observation) -> None:
    serving = by_type(build_status(observation, None, 1, NOW))["Serving"].status
    if observation.pods is None:
        assert serving == "Unknown"
    else:
        assert (serving == "True") is bool(observation.answering_pods)


@pytest.mark.parametrize("wanted", ["True", "False", "Unknown"])
def test_the_observations_above_reach_every_status_of_ready(wanted: str) -> None:
    """Guards the tests above: an example that is never ready would prove nothing."""
    search = settings(CALM, phases=[Phase.generate], max_examples=2000, database=None)

    def reached(item: Observation) -> bool:
        return by_type(build_status(item, None, 1, NOW))["Ready"].status == wanted

    find(OBSERVATIONS, reached, settings=search)

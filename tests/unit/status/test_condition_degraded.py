from __future__ import annotations

from datetime import timedelta

import pytest
from observing import in_step, judge, observe, short
from podbuilder import (
    NOW,
    answering,
    container,
    crash_back_off,
    crashed,
    deployment,
    loading,
    pod,
    refused,
    terminated,
    unschedulable,
    waiting,
)

from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition
from sglang_operator.status.degraded import METRICS_PATIENCE, SCHEDULING_PATIENCE, SYNC_PATIENCE
from sglang_operator.status.observation import (
    ApplyFailure,
    MetricsFacts,
    Observation,
    PodThreshold,
    SpecRefusal,
    ThresholdErrorKind,
)

OLD = answering("demo-old", revision="rev-old")
HEALTHY = observe([answering()], thresholds=in_step([answering()]))
LOOPING = crashed(crash_back_off("engine", "demo"), last=terminated(1), restarts=4)
NO_GPUS = unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


def verdict(observation: Observation, previous: tuple[Condition, ...] = (), minutes: float = 0) -> Condition:
    return judge(observation, previous, now=NOW + timedelta(minutes=minutes))[ConditionType.DEGRADED]


def threshold(kind: ThresholdErrorKind) -> Observation:
    failed = PodThreshold(pod="demo-7d9f6c5b8-x2x4k", error_kind=kind, error_message="no")
    return observe([answering()], thresholds=(failed,))


def metrics(reason: Reason) -> Observation:
    return observe([answering()], thresholds=in_step([answering()]), metrics=MetricsFacts(reason=reason))


def test_a_healthy_service_needs_nobody() -> None:
    condition = verdict(HEALTHY)
    assert short(condition) == ("False", "AsExpected")
    assert condition.message == "Nothing needs a person."


def test_a_service_that_starts_needs_nobody() -> None:
    assert short(verdict(observe([loading()]))) == ("False", "AsExpected")
    assert short(verdict(observe([]))) == ("False", "AsExpected")


AT_ONCE = [
    (observe([OLD], spec_error=SpecRefusal(reason="InvalidSpec", message="No.")), "InvalidSpec"),
    (observe([OLD], apply_error=ApplyFailure(reason=Reason.APPLY_FAILED, message="No.")), "ApplyFailed"),
    (observe([OLD, refused()]), "UnsupportedSource"),
    (observe([LOOPING]), "CrashLoop"),
    (observe([pod(patch=container(waiting("ErrImagePull", "not found")))]), "ImagePullFailed"),
    (observe([pod(patch=container(waiting("CreateContainerConfigError", "secret")))]), "ContainerConfigError"),
    (observe([], deployment(failure="exceeded quota: gpus")), "QuotaExceeded"),
    (observe([], deployment(failure="violates PodSecurity")), "PodRefused"),
    (observe([loading()], deployment(late=True)), "ProgressDeadlineExceeded"),
    (threshold(ThresholdErrorKind.UNAUTHORIZED), "LiveUpdateUnauthorized"),
    (threshold(ThresholdErrorKind.NO_KEY), "APIKeyUnavailable"),
    (threshold(ThresholdErrorKind.REFUSED), "EngineRefused"),
    (
        observe([answering()], thresholds=(PodThreshold(pod="demo-7d9f6c5b8-x2x4k", values=(32,), active=False),)),
        "ThresholdInactive",
    ),
]


@pytest.mark.parametrize(("observation", "reason"), AT_ONCE)
def test_what_will_not_pass_by_itself_is_told_at_once(observation: Observation, reason: str) -> None:
    assert short(verdict(observation)) == ("True", reason)


LATER = [
    (observe([NO_GPUS]), SCHEDULING_PATIENCE, "InsufficientGPUs"),
    (threshold(ThresholdErrorKind.UNREACHABLE), SYNC_PATIENCE, "EngineUnreachable"),
    (threshold(ThresholdErrorKind.KEY_NOT_READ), SYNC_PATIENCE, "Syncing"),
    (metrics(Reason.STALE), METRICS_PATIENCE, "Stale"),
    (metrics(Reason.METRICS_UNREACHABLE), METRICS_PATIENCE, "MetricsUnreachable"),
]


@pytest.mark.parametrize(("observation", "patience", "reason"), LATER)
def test_what_may_pass_by_itself_is_told_later(observation: Observation, patience: timedelta, reason: str) -> None:
    known = tuple(judge(observation).values())
    minutes = patience.total_seconds() / 60
    assert short(verdict(observation, known, minutes - 0.1)) == ("False", "AsExpected")
    assert short(verdict(observation, known, minutes)) == ("True", reason)


def test_metrics_that_were_never_configured_wake_nobody() -> None:
    observation = metrics(Reason.NOT_CONFIGURED)
    known = tuple(judge(observation).values())
    assert short(verdict(observation, known, 24 * 60)) == ("False", "AsExpected")


def test_the_first_of_several_causes_speaks() -> None:
    many: dict[str, object] = {
        "spec_error": SpecRefusal(reason="InvalidSpec", message="spec.gpus.count: must be at most 8."),
        "apply_error": ApplyFailure(reason=Reason.OPERATOR_FORBIDDEN, message="Deployment demo: forbidden."),
        "metrics": MetricsFacts(reason=Reason.STALE),
    }
    pods = [OLD, refused("demo-b"), LOOPING]
    assert short(verdict(observe(pods, **many))) == ("True", "InvalidSpec")
    del many["spec_error"]
    assert short(verdict(observe(pods, **many))) == ("True", "OperatorForbidden")
    del many["apply_error"]
    assert short(verdict(observe(pods, **many))) == ("True", "UnsupportedSource")
    assert short(verdict(observe([OLD, LOOPING], **many))) == ("True", "CrashLoop")


def test_nothing_seen() -> None:
    assert short(verdict(observe(None))) == ("Unknown", "NotObserved")
    refusal = SpecRefusal(reason="InvalidSpec", message="No.")
    assert short(verdict(observe(None, spec_error=refusal))) == ("True", "InvalidSpec")

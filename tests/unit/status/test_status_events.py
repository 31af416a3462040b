from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from observing import decision, in_step, observe
from podbuilder import NOW, answering, crash_back_off, crashed, deployment, loading, patching, refused, terminated

from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import InferenceServiceStatus
from sglang_operator.status.degraded import METRICS_PATIENCE
from sglang_operator.status.observation import (
    ApplyFailure,
    MetricsFacts,
    Observation,
    PodThreshold,
    SpecRefusal,
    ThresholdErrorKind,
)
from sglang_operator.status.summary import build_status, events

HEALTHY = observe([answering()], thresholds=in_step([answering()]))
OLD = answering("demo-old", revision="rev-old")
BEFORE = observe([OLD], deployment(revision="rev-old"), revision="rev-old", thresholds=in_step([OLD]))


def told(*observations: Observation, minutes: float = 1) -> list[tuple[str, bool]]:
    """Reasons and warnings of the last of several passes, `minutes` apart."""
    previous: InferenceServiceStatus | None = None
    lines: Sequence[tuple[str, bool]] = ()
    for number, observation in enumerate(observations):
        status = build_status(observation, previous, 1, NOW + timedelta(minutes=number * minutes))
        lines = [(line.reason.value, line.warning) for line in events(previous, status)]
        previous = status
    return list(lines)


def test_nothing_changed_nothing_told() -> None:
    assert told(HEALTHY, HEALTHY) == []
    assert told(observe([loading()]), observe([loading()])) == []


def test_a_first_visit_of_a_new_service_tells_its_threshold_only() -> None:
    assert told(observe([])) == [("ThresholdChanged", False)]


def test_a_service_that_comes_up() -> None:
    assert told(observe([patching()]), observe([loading()])) == [("PatchVerified", False)]
    assert told(observe([loading()]), HEALTHY) == [("ThresholdSynced", False), ("Ready", False)]


def test_a_threshold_that_moves_and_is_followed() -> None:
    moved = observe(
        [answering()], decision=decision(16, "Drafting is slower from 16 on."), thresholds=in_step([answering()], 16)
    )
    before = build_status(HEALTHY, None, 1, NOW)
    lines = events(before, build_status(moved, before, 1, NOW))
    assert [(line.reason.value, line.message) for line in lines] == [
        ("ThresholdChanged", "Threshold 32 -> 16 (Spec). Drafting is slower from 16 on."),
        ("ThresholdSynced", "Every rank of 1 pod was read back with 16."),
    ]


def test_a_threshold_that_moves_and_is_followed_one_pass_later() -> None:
    moved = observe([answering()], decision=decision(16), thresholds=in_step([answering()], 32))
    followed = observe([answering()], decision=decision(16), thresholds=in_step([answering()], 16))
    assert told(HEALTHY, moved) == [("ThresholdChanged", False)]
    assert told(HEALTHY, moved, followed) == [("ThresholdSynced", False)]


def test_a_secret_that_can_not_be_read_for_a_moment_is_no_news() -> None:
    failed = PodThreshold(pod="demo-7d9f6c5b8-x2x4k", error_kind=ThresholdErrorKind.KEY_NOT_READ, error_message="no")
    assert told(HEALTHY, observe([answering()], thresholds=(failed,))) == []


@pytest.mark.parametrize("kind", [kind for kind in ThresholdErrorKind if kind is not ThresholdErrorKind.KEY_NOT_READ])
def test_a_threshold_that_cannot_be_set(kind: ThresholdErrorKind) -> None:
    failed = PodThreshold(pod="demo-7d9f6c5b8-x2x4k", error_kind=kind, error_message="no")
    stuck = observe([answering()], thresholds=(failed,))
    assert told(HEALTHY, stuck) == [("ThresholdNotSynced", True)]
    assert told(HEALTHY, stuck, stuck) == []
    assert ("ThresholdSynced", False) in told(HEALTHY, stuck, HEALTHY)


def test_a_bad_upgrade_while_the_old_pods_serve() -> None:
    assert told(BEFORE, observe([OLD, refused()], thresholds=in_step([OLD]))) == [
        ("RollingOut", False),
        ("PatchRefused", True),
        ("NotReady", True),
    ]


def test_a_refused_spec_is_told_again_when_the_mistake_is_another() -> None:
    one = observe([answering()], spec_error=SpecRefusal(reason="InvalidSpec", message="spec.gpus: missing."))
    two = observe([answering()], spec_error=SpecRefusal(reason="InvalidSpec", message="spec.engine: missing."))
    assert told(one) == [("SpecRefused", True), ("PatchVerified", False), ("ThresholdChanged", False)]
    assert told(one, one) == []
    assert told(one, two) == [("SpecRefused", True)]
    assert ("SpecRefused", True) not in told(one, HEALTHY)


def test_metrics_lost_late_and_back() -> None:
    lost = observe([answering()], thresholds=in_step([answering()]), metrics=MetricsFacts(reason=Reason.STALE))
    assert told(HEALTHY, lost) == [("MetricsLost", True)]
    assert told(HEALTHY, lost, lost) == []
    patience = METRICS_PATIENCE.total_seconds() / 60
    assert told(HEALTHY, lost, lost, minutes=patience) == [("Degraded", True)]
    assert told(HEALTHY, lost, lost, HEALTHY, minutes=patience) == [("MetricsBack", False), ("Recovered", False)]


def test_a_crash_loop() -> None:
    looping = crashed(crash_back_off("engine", "demo"), last=terminated(1), restarts=4)
    assert told(HEALTHY, observe([looping])) == [("CrashLoop", True), ("NotReady", True)]
    assert ("Recovered", False) in told(HEALTHY, observe([looping]), HEALTHY)


def test_what_could_not_be_written() -> None:
    failure = ApplyFailure(reason=Reason.OPERATOR_FORBIDDEN, message="Service demo: forbidden.")
    failed = observe([answering()], apply_error=failure, thresholds=in_step([answering()]))
    assert told(HEALTHY, failed) == [("ApplyFailed", True), ("NotReady", True)]
    assert told(HEALTHY, failed, failed) == []


def test_what_somebody_asked_for_is_no_warning() -> None:
    rolled = observe([OLD, loading()], revision="rev-a", thresholds=in_step([OLD]))
    assert told(BEFORE, rolled) == [("RollingOut", False), ("NotReady", False)]
    assert ("NotReady", False) in told(HEALTHY, observe([], desired_replicas=0))


def test_messages_fit_into_an_event() -> None:
    wordy = observe([answering()], decision=decision(16, "ü" * 2000))
    lines = events(build_status(HEALTHY, None, 1, NOW), build_status(wordy, None, 1, NOW))
    assert all(len(line.message.encode()) <= 1024 for line in lines)

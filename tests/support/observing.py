"""Observations for status tests, from manifests, with what a healthy service has as default."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from podbuilder import NOW, deployment

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import ConditionType, Reason
from sglang_operator.api.v1alpha1 import Condition, Manifest, ThresholdSource
from sglang_operator.status.conditions import conditions
from sglang_operator.status.observation import (
    MetricsFacts,
    Observation,
    PodThreshold,
    observe_deployment,
    observe_pod,
)

SELECTOR = "serving.sglang-operator.io/service=demo"
URL = "http://demo.default.svc:30000"
FRESH = MetricsFacts(reason=Reason.FRESH)


def decision(batch_size: int = 32, message: str = "First value, from the spec.") -> Decision:
    return Decision(batch_size=batch_size, source=ThresholdSource.SPEC, decided_at=NOW, message=message)


def observe(
    pods: Sequence[Manifest] | None = (), workload: Manifest | None = None, /, **changes: object
) -> Observation:
    """An observation of the service `demo`: one replica of revision `rev-a`, speculation on, threshold 32."""
    deployed = observe_deployment(deployment() if workload is None else workload)
    facts: dict[str, object] = {
        "selector": SELECTOR,
        "url": URL,
        "desired_replicas": 1,
        "speculates": True,
        "revision": "rev-a",
        "patch_digest": "9b" * 32,
        "workload": deployed,
        "pods": None if pods is None else tuple(observe_pod(manifest) for manifest in pods),
        "decision": decision(),
        "thresholds": (),
        "metrics": FRESH,
    }
    return Observation(**{**facts, **changes})  # type: ignore[arg-type]


def in_step(pods: Sequence[Manifest], batch_size: int = 32, ranks: int = 1) -> tuple[PodThreshold, ...]:
    """Every pod says that all its ranks hold `batch_size`."""
    return tuple(
        PodThreshold(pod=manifest["metadata"]["name"], values=(batch_size,) * ranks, release="0.5.23")
        for manifest in pods
    )


def judge(
    observation: Observation, previous: Sequence[Condition] = (), *, generation: int = 1, now: datetime = NOW
) -> dict[ConditionType, Condition]:
    """All conditions, by type."""
    judged = conditions(observation, previous, generation, now)
    return {ConditionType(condition.type): condition for condition in judged}


def short(condition: Condition) -> tuple[str, str]:
    """Status and reason."""
    return condition.status, condition.reason

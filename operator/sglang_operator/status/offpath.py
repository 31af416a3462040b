"""How the servers decode while drafting is off, by their own word, and whether it is what the spec asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_operator.api.v1alpha1 import OffPath
from sglang_operator.status.observation import Observation, PodThreshold
from sglang_operator.status.text import one_line, sentence, some

_PODS_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class RunningOffPath:
    """What the pods said: their paths, and why one of them is not `Decode`. None: nobody has said so."""

    path: str | None
    reason: str | None


def running(observation: Observation) -> RunningOffPath:
    """Sum up the pods that answer; pods that differ, as in a rollout, are all told."""
    answering = {pod.name for pod in observation.answering_pods}
    told = [item for item in observation.thresholds if item.pod in answering and item.off_path]
    return RunningOffPath(path=_joined([item.off_path or "" for item in told], ", "), reason=_reasons(told))


def shortfall(observation: Observation) -> str:
    """Say that `Decode` was asked for and something else runs in a current pod; empty when that isn't so.

    Such a server obeys the threshold and gives the same answers; its steps without drafts are slower.
    """
    if observation.off_path is not OffPath.DECODE:
        return ""
    current = {pod.name for pod in observation.current_pods if pod.answers}
    others = [item for item in observation.thresholds if item.pod in current and _is_another(item)]
    if not others:
        return ""
    named = some([f"{item.pod} ({item.off_path})" for item in others], _PODS_NAMED)
    return f"speculation.offPath asks for Decode, which does not run in {named}: {sentence(_reasons(others) or '')}"


def _is_another(item: PodThreshold) -> bool:
    return item.off_path is not None and item.off_path != OffPath.DECODE


def _reasons(told: Sequence[PodThreshold]) -> str | None:
    return _joined([one_line(item.off_path_reason) for item in told if item.off_path_reason], "; ")


def _joined(texts: Sequence[str], separator: str) -> str | None:
    return separator.join(sorted(set(texts))) or None

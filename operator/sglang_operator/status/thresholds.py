"""The condition `ThresholdSynced`: the decided threshold was read back from every rank of every pod that answers."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.status.observation import Observation, PodThreshold, ThresholdErrorKind
from sglang_operator.status.offpath import shortfall
from sglang_operator.status.text import paragraph, pods, sentence, some
from sglang_operator.status.verdict import Verdict, false, true, unknown

_MOST_TELLING_FIRST = (
    Reason.LIVE_UPDATE_UNAUTHORIZED,
    Reason.API_KEY_UNAVAILABLE,
    Reason.ENGINE_REFUSED,
    Reason.THRESHOLD_INACTIVE,
    Reason.ENGINE_UNREACHABLE,
    Reason.SYNCING,
)
_BY_ERROR = {
    ThresholdErrorKind.UNAUTHORIZED: Reason.LIVE_UPDATE_UNAUTHORIZED,
    ThresholdErrorKind.NO_KEY: Reason.API_KEY_UNAVAILABLE,
    ThresholdErrorKind.KEY_NOT_READ: Reason.SYNCING,
    ThresholdErrorKind.REFUSED: Reason.ENGINE_REFUSED,
    ThresholdErrorKind.UNREACHABLE: Reason.ENGINE_UNREACHABLE,
}
_NEXT_STEP = {
    Reason.LIVE_UPDATE_UNAUTHORIZED: "The pods keep their value. If their Secret has changed since they started, "
    "replace them (kubectl rollout restart); a key that comes from elsewhere belongs into engine.apiKeySecretRef.",
    Reason.API_KEY_UNAVAILABLE: "The pods keep their value; it is tried again at each pass.",
    Reason.ENGINE_REFUSED: "The pods keep their old value; it is tried again at each pass. Read the server's log.",
    Reason.THRESHOLD_INACTIVE: "The value is stored but has no effect. Change what is named, or set "
    "speculation.algorithm to None.",
    Reason.ENGINE_UNREACHABLE: "It is tried again at each pass. If it lasts, check the pod's load and network "
    "policies between the operator and the pod.",
    Reason.SYNCING: "",
}
_PODS_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class _Gap:
    """What one pod lacks."""

    reason: Reason
    text: str


def threshold_synced(observation: Observation) -> Verdict:
    """Decide `ThresholdSynced`. Without speculation nothing is asked for, so nothing is missing: true, `NotUsed`."""
    if observation.speculates is False:
        return true(Reason.NOT_USED, "Speculation is off (speculation.algorithm: None): there is no threshold.")
    if observation.decision is None or observation.pods is None:
        return unknown(Reason.NOT_OBSERVED, "No threshold is decided yet.")
    wanted, answering = observation.decision, observation.answering_pods
    if not answering:
        start = f"No pod answers. The next ones start with {wanted.batch_size}, and are then asked for it."
        return unknown(Reason.NO_PODS, start)
    by_pod = {threshold.pod: threshold for threshold in observation.thresholds}
    gaps = [gap for pod in answering if (gap := _gap(pod.name, by_pod.get(pod.name), wanted))]
    if not gaps:
        each = "" if len(answering) == 1 else "each of "
        synced = f"Every rank of {each}{pods(len(answering))} was read back with {wanted.batch_size}."
        return true(Reason.SYNCED, paragraph(synced, shortfall(observation)))
    return _not_synced(gaps, total=len(answering))


def synced_pods(observation: Observation, wanted: int) -> int:
    """Count the answering pods that were read back with `wanted` on every rank."""
    answering = {pod.name for pod in observation.answering_pods}
    return sum(1 for item in observation.thresholds if item.pod in answering and item.holds(wanted))


def _not_synced(gaps: list[_Gap], *, total: int) -> Verdict:
    worst = min((gap.reason for gap in gaps), key=_MOST_TELLING_FIRST.index)
    # The pods with the reason that is shown come first, so that the cut never takes them.
    ordered = sorted(gaps, key=lambda gap: _MOST_TELLING_FIRST.index(gap.reason))
    named = some([gap.text for gap in ordered], _PODS_NAMED, separator="; ")
    return false(worst, paragraph(f"{len(gaps)} of {pods(total)} not in step.", _NEXT_STEP[worst], sentence(named)))


def _gap(pod: str, threshold: PodThreshold | None, wanted: Decision) -> _Gap | None:
    if threshold is None:
        return _Gap(reason=Reason.SYNCING, text=f"{pod}: not asked yet")
    if threshold.error_kind is not None:
        why = sentence(threshold.error_message).rstrip(".") or threshold.error_kind.value
        return _Gap(reason=_BY_ERROR[threshold.error_kind], text=f"{pod}: {why}")
    if not threshold.holds(wanted.batch_size):
        return _Gap(reason=Reason.SYNCING, text=f"{pod}: {_held(threshold.values, wanted.batch_size)}")
    if not threshold.probes(wanted.probe_permille):
        return _Gap(reason=Reason.SYNCING, text=f"{pod}: does not probe as decided")
    if not threshold.active:
        why = sentence(threshold.inactive_reason or "the engine patch gives no cause").rstrip(".")
        return _Gap(reason=Reason.THRESHOLD_INACTIVE, text=f"{pod}: {why}")
    return None


def _held(values: tuple[int, ...] | None, wanted: int) -> str:
    if not values:
        return f"no rank told its value, {wanted} is wanted"
    if len(set(values)) == 1:
        return f"holds {values[0]}, {wanted} is wanted"
    wrong = [f"rank {rank} holds {value}" for rank, value in enumerate(values) if value != wanted]
    return f"{some(wrong)} of {len(values)} ranks, {wanted} is wanted"

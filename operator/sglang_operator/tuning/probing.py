"""How much to probe: with a threshold each batch size runs in one mode, and only probes tell what the other would do.

The server runs the share that it is given of its decode steps in the other mode, in short bursts, at whatever batch
sizes it decodes. The share follows from what a burst costs here and now, by the modes' measured difference:

- While the better mode isn't known for sure (after a start, a drift, or at batch sizes never seen), as much as
  `search_cost` allows, as long as the last 15 minutes' probes have cost less than the budget. What they cost is known:
  the server counts them.
- Else what keeps the evidence fresh, and costs at most `probe_cost`.
- Nothing without metrics, since nobody would look; nothing while requests have been waiting for a minute, unless the
  load's modes were never compared, for a long queue is where the better mode matters most; nothing where no allowed
  threshold could act on it.

A share changes only by more than one doubling, since each change is a write and a call to each server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.tuning import rule
from sglang_operator.tuning.estimate import BURST_STEPS, Estimator
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.load import Share
from sglang_operator.tuning.model import Evidence, Probe
from sglang_operator.tuning.samples import SPARSE

_UNKNOWN_LOSS = 0.3
"""What a mode is taken to lose where it was never seen,"""
_UNKNOWN_RATIO = 2.0
"""and how long its steps are taken to be, as a multiple of the other mode's."""
_LEAST_LOSS = 0.05
"""A burst costs at least so much of its own time: the change of mode and back is not free."""
_NEGLIGIBLE = 0.02
_LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a share is chosen for."""

    policy: DisableThreshold
    evidence: Evidence
    estimator: Estimator
    load: Sequence[Share]
    threshold: int
    limits: Limits


def share(scene: Scene, previous_permille: int) -> int:
    """Return the probe share in thousandths; `previous_permille` is the one in force."""
    limits, load = scene.limits, scene.load
    if not scene.evidence.cells:
        # Nothing was ever decoded, or the counters are new: the first steps shall tell.
        return limits.search_permille if scene.policy.min < scene.policy.max else 0
    if not load:
        return previous_permille
    movable = [item for item in load if scene.policy.min <= item.batch_size < scene.policy.max]
    compared = all(scene.estimator.difference(item.batch_size) is not None for item in movable)
    if sum(item.share for item in movable) < _NEGLIGIBLE or ((scene.evidence.queued_requests or 0) > 0 and compared):
        return 0
    each = sum(item.share * _cost(scene, item) for item in load) / 1000
    if _possible_loss(scene, movable) >= limits.search_loss and _spent(scene) < _budget(scene):
        wanted = min(limits.refine_permille if compared else limits.search_permille, limits.search_cost / each)
    else:
        wanted = min(limits.refine_permille, limits.probe_cost / each, _fresh(scene))
    return _level(wanted, previous_permille)


def _possible_loss(scene: Scene, movable: Sequence[Share]) -> float:
    """Part of the output that the threshold may be giving away, at most, as far as is known."""
    total = 0.0
    for item in movable:
        difference = scene.estimator.difference(item.batch_size)
        mode = rule.mode(scene.threshold, item.batch_size)
        lost = difference.possible_loss(mode, scene.limits.deviations) if difference else _UNKNOWN_LOSS
        total += item.share * lost
    return total


def _cost(scene: Scene, item: Share) -> float:
    """Output that is lost, in relation to the output of all the time, if each step were followed by a probe step."""
    mode = rule.mode(scene.threshold, item.batch_size).other
    other, own = (scene.estimator.step_seconds(m, item.batch_size) for m in (mode, mode.other))
    difference = scene.estimator.difference(item.batch_size)
    ratio = other.value / own.value if other and own else _UNKNOWN_RATIO
    return ratio * (max(_LEAST_LOSS, difference.loss(mode)) if difference else _UNKNOWN_LOSS)


def _spent(scene: Scene) -> float:
    """Seconds of output that the probes of the last 15 minutes have cost."""
    return sum(_spent_on(scene.estimator, probe) for probe in scene.evidence.probes)


def _spent_on(estimator: Estimator, probe: Probe) -> float:
    batch_size = math.sqrt(probe.bucket.low * (probe.bucket.high or probe.bucket.low))
    seconds, difference = estimator.step_seconds(probe.mode, batch_size), estimator.difference(batch_size)
    if seconds is None:
        return 0.0
    return (
        probe.steps * seconds.value * (max(_LEAST_LOSS, difference.loss(probe.mode)) if difference else _UNKNOWN_LOSS)
    )


def _budget(scene: Scene) -> float:
    decoded = sum(cell.seconds for cell in scene.evidence.cells)
    return max(scene.limits.probe_budget_seconds, scene.limits.probe_cost * decoded)


def _fresh(scene: Scene) -> float:
    """Share that yields the wanted number of bursts a minute."""
    newest = [cell for cell in scene.evidence.cells if cell.window.age_seconds < SPARSE.length_seconds]
    steps_a_minute = 60 / SPARSE.length_seconds * sum(cell.steps for cell in newest)
    return 1000 * BURST_STEPS * scene.limits.probe_bursts_a_minute / max(1.0, steps_a_minute)


def _level(wanted: float, previous: int) -> int:
    level = max((level for level in _LEVELS if level <= wanted + 0.5), default=0)
    return previous if previous and max(level, previous) <= 2 * min(level, previous) else level

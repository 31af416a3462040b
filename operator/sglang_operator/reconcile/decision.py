"""Which threshold is in force for a service when a pass begins; measurements are the tuning loop's business."""

from __future__ import annotations

from datetime import datetime

from sglang_operator.api.decision import Decision
from sglang_operator.api.reasons import Reason
from sglang_operator.api.v1alpha1 import DisableThreshold, ThresholdMode
from sglang_operator.tuning.model import unavailable
from sglang_operator.tuning.policy import decide, initial


def current_decision(
    policy: DisableThreshold, *, remembered: Decision | None, persisted: Decision | None, now: datetime
) -> Decision:
    """Return what this process decided last, else what an earlier one left in the cluster, else the first value.

    So a restart of the operator changes nothing. What the spec alone decides, a fixed value and the bounds, is
    applied at once and needs no measurement.
    """
    known = remembered or persisted or initial(policy, now)
    in_bounds = policy.min <= known.batch_size <= policy.max
    if policy.mode is ThresholdMode.AUTO and in_bounds:
        return known
    return decide(policy, unavailable(Reason.NOT_USED, "Decided by the spec alone."), known, now).decision

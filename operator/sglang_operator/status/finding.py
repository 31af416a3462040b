"""What keeps one pod from answering, as a value, and which of several is the most telling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_operator.api.reasons import Reason
from sglang_operator.status.patchresult import PATCH_REASONS
from sglang_operator.status.verdict import Wording


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Why one pod doesn't answer. `message` names the pod; `needs_person`: it won't go away by itself."""

    pod: str
    reason: Reason
    message: str
    needs_person: bool = False
    wording: Wording = Wording.EXACT


PATCH_FAILURES = PATCH_REASONS | {Reason.IMPORT_CHECK_OOM_KILLED}
"""Reasons with which the patch container fails."""

_MOST_TELLING_FIRST = (
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_CONFIG,
    Reason.OOM_KILLED,
    Reason.CRASH_LOOP,
    Reason.START_STALLED,
    Reason.NOT_SERVING,
    Reason.STARTING,
    Reason.PATCH_PENDING,
    Reason.PODS_PENDING,
)


def most_telling(findings: Iterable[Finding]) -> Finding | None:
    """Pick one: patch failures first, then by the written order, then by the pod's name."""
    return min(findings, key=_rank, default=None)


def _rank(finding: Finding) -> tuple[int, str]:
    if finding.reason in PATCH_FAILURES:
        return -1, finding.pod
    return _MOST_TELLING_FIRST.index(finding.reason), finding.pod

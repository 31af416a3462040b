"""Why a worker can't stop drafting, in the words that its server tells."""

from __future__ import annotations

SUPPORTED_WORKER = "EAGLEWorkerV2"
_WHO_HAS_ONE = f"only {SUPPORTED_WORKER} of SGLang 0.5.14 and newer has"

NO_WORKER = f"no worker of this SGLang release has a zero-step state ({_WHO_HAS_ONE})"


def unsupported_worker(worker: object) -> str:
    """Say why a worker that the patch doesn't attach to can't obey a threshold."""
    return f"worker {type(worker).__name__} has no zero-step state ({_WHO_HAS_ONE})"

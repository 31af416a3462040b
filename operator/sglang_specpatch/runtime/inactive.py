"""What a server says whose worker can't stop drafting: the patch is there, and the threshold has no effect."""

from __future__ import annotations

from importlib import import_module

from . import settings
from .ports import HttpRequest

SUPPORTED_WORKER = "EAGLEWorkerV2"
_WHO_HAS_ONE = f"only {SUPPORTED_WORKER} of SGLang 0.5.14 and newer has"


def unsupported_worker(worker: object) -> str:
    """Say why a worker that the patch doesn't attach to can't obey a threshold."""
    return f"worker {type(worker).__name__} has no zero-step state ({_WHO_HAS_ONE})"


async def refuse_request(request: HttpRequest) -> None:
    """Called with a live update where no worker has a zero-step state: answer our keys with 400 and a sentence.

    These releases answer "updated" whatever the scheduler says, so that the refusal has to come from here.
    """
    body = await request.json()
    updates = body.get("server_args") if isinstance(body, dict) else None
    name = next((name for name in settings.LIVE if isinstance(updates, dict) and name in updates), None)
    if name is not None:
        raise import_module("fastapi").HTTPException(
            status_code=400,
            detail=f"Live update refused: {name} has no effect on this server: no worker of this SGLang release has a "
            f"zero-step state ({_WHO_HAS_ONE})",
        )

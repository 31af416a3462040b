"""Live updates as they come over HTTP: refused there with 400 and a sentence, before a handler sees them.

By the time the scheduler sees an update, newer releases have turned "3" into 3 and true into 1; older ones answer
"updated" whatever the scheduler says.
"""

from __future__ import annotations

from importlib import import_module

from . import settings
from .inactive import NO_WORKER
from .ports import HttpRequest


async def check_request(request: HttpRequest) -> None:
    """Called with a live update where the threshold can be obeyed: refuse values that can't be."""
    _refuse(settings.update_refusal(await _updates(request)))


async def refuse_request(request: HttpRequest) -> None:
    """Called with a live update where no worker has a zero-step state: refuse our settings, whatever their values."""
    updates = await _updates(request)
    name = next((name for name in settings.LIVE if name in updates), None)
    _refuse(None if name is None else f"{name} has no effect on this server: {NO_WORKER}")


async def _updates(request: HttpRequest) -> dict[str, object]:
    body = await request.json()
    updates = body.get("server_args") if isinstance(body, dict) else None
    return updates if isinstance(updates, dict) else {}


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise import_module("fastapi").HTTPException(status_code=400, detail=f"Live update refused: {problem}")

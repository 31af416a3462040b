"""Added to SGLang by the engine patch: speculation that stops when the decode batch grows.

`--speculative-disable-batch-threshold N`: with N or more requests decoding together no drafts are made, below N
drafting goes on; 0 = always speculate, 1 = never. The value can be changed while serving (`/set_internal_state`),
is read back in `/server_info`, and both modes are measured by batch size on `/metrics`.

SGLang's own files only call the functions below. Nothing here imports SGLang, torch or prometheus_client before the
server does.
"""

from .hooks import (
    accepts_update,
    add_readback,
    attach,
    check_request,
    note_forward,
    note_idle,
    note_result,
    update_check,
)
from .threshold import parse_threshold

__all__ = [
    "accepts_update",
    "add_readback",
    "attach",
    "check_request",
    "note_forward",
    "note_idle",
    "note_result",
    "parse_threshold",
    "update_check",
]

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
    note_forward,
    note_idle,
    note_result,
    update_check,
)
from .offpath import (
    attach_off_path,
    lengths_on_host,
    off_path_forward,
    off_path_graphs,
    off_path_prefill,
    off_path_ready,
    off_path_step,
    relays_bonus_only,
    target_reads_last,
)
from .requests import check_request, refuse_request
from .reservation import most_draft_tokens
from .settings import parse_off_path, parse_probe_permille, parse_threshold, parse_verify_tile
from .verify_tile import extend_tile

__all__ = [
    "accepts_update",
    "add_readback",
    "attach",
    "attach_off_path",
    "check_request",
    "extend_tile",
    "lengths_on_host",
    "most_draft_tokens",
    "note_forward",
    "note_idle",
    "note_result",
    "off_path_forward",
    "off_path_graphs",
    "off_path_prefill",
    "off_path_ready",
    "off_path_step",
    "parse_off_path",
    "parse_probe_permille",
    "parse_threshold",
    "parse_verify_tile",
    "refuse_request",
    "relays_bonus_only",
    "target_reads_last",
    "update_check",
]

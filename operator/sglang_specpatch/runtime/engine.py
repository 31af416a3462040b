"""What the patch needs to know about the SGLang around it: its config, its reasons against, its logs."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .inactive import SUPPORTED_WORKER, unsupported_worker
from .ports import Worker
from .settings import LIVE

logger = logging.getLogger("sglang.srt.speculative.specpatch")

_SWITCH_LOG_SECONDS = 10.0
_LOG_ENTRIES = 64
_SWITCHED_FIELDS = frozenset({"speculative_num_steps", "speculative_num_draft_tokens", *LIVE})


def setting_reader(name: str) -> Callable[[], Any]:
    """Return a function that reads a setting where this release keeps live-updated config.

    That is the config of the scheduler process, which `/set_internal_state` changes and `/server_info` shows, so
    there is one truth. Raises AttributeError when no known place has it.
    """
    try:
        get_spec = getattr(import_module("sglang.srt.runtime_context"), "get_spec", None)
    except ModuleNotFoundError:
        get_spec = None
    if get_spec is not None and hasattr(get_spec(), name):
        return lambda: getattr(get_spec(), name)
    get_args = import_module("sglang.srt.server_args").get_global_server_args
    getattr(get_args(), name)
    return lambda: getattr(get_args(), name)


def inactive_reason(worker: Worker) -> str | None:
    """Say why this worker can't switch drafting off and on step by step, or None if it can."""
    if type(worker).__name__ != SUPPORTED_WORKER:
        return unsupported_worker(worker)
    args = worker.server_args
    adaptive = import_module("sglang.srt.speculative.adaptive_spec_params")
    reason = adaptive.adaptive_unsupported_reason(args)
    if reason is not None:
        return str(reason)
    setting = settled(args)
    stages = setting("pp_size")
    if stages not in (None, 1):
        return f"pp_size={stages} is not supported (only the last stage hosts the draft)"
    for flag in ("enable_lora", "enable_hisparse"):
        if setting(flag):
            return f"{flag}=True is not supported (its buffers are sized for one step count)"
    shares_index = getattr(import_module(type(worker).__module__), "_qsa_index_share_requested", None)
    if shares_index is not None and shares_index(_draft_config(worker)):
        return "the draft model shares its sparse-attention index between steps, which a change of steps would break"
    return None


def settled(server_args: object) -> Callable[[str], object]:
    """Return a reader of the arguments as resolution left them; older releases resolve in place."""
    try:
        overrides = import_module("sglang.srt.arg_groups.overrides")
    except ModuleNotFoundError:
        view: object = server_args
    else:
        view = overrides.resolved_view(server_args)
    return lambda name: getattr(view, name, None)


def _draft_config(worker: Worker) -> object:
    draft_worker = getattr(worker, "_draft_worker")  # noqa: B009
    return draft_worker.draft_runner.model_config.hf_config


def trim_override_logs(worker: Worker) -> None:
    """Drop the log entries of step changes and live updates that a later one repeats.

    SGLang appends an entry for every change and never removes any; a batch size that swings around the threshold
    would grow that list for as long as the server lives. Replaying what is left gives the same config.
    """
    context = import_module("sglang.srt.runtime_context").get_context()
    for owner, name in (
        (context, "_overrides_log"),
        (worker.server_args, "_runtime_mutations"),
        (worker.server_args, "_resolved_overrides"),
    ):
        log = getattr(owner, name, None)
        if isinstance(log, list) and len(log) > _LOG_ENTRIES:
            log[:] = _without_repeats(log)


def _without_repeats(log: list[tuple[str, dict[str, object]]]) -> list[tuple[str, dict[str, object]]]:
    kept: list[tuple[str, dict[str, object]]] = []
    seen: set[tuple[str, frozenset[str]]] = set()
    for source, fields in reversed(log):
        key = (source, frozenset(fields))
        if key not in seen or not key[1] <= _SWITCHED_FIELDS:
            kept.append((source, fields))
        seen.add(key)
    return kept[::-1]


class _QuietSwitches(logging.Filter):
    """Lets SGLang's line about a change of steps through once in ten seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every other line; keep this one if the last is old enough."""
        if not str(record.msg).startswith("Switch adaptive runtime state"):
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _SWITCH_LOG_SECONDS
        return True


def quiet_switch_log(worker: Worker) -> None:
    """Keep a batch size that swings around the threshold from filling the log."""
    worker_log = logging.getLogger(type(worker).__module__)
    if not any(isinstance(existing, _QuietSwitches) for existing in worker_log.filters):
        worker_log.addFilter(_QuietSwitches())


@functools.cache
def patch_identity() -> tuple[int | None, str | None]:
    """Return generation and release from the manifest beside the running tree; None where it can't be read.

    Read once, at the start: what is asked for is what this process loaded, not what lies there by now.
    """
    manifest = Path(__file__).resolve().parents[4] / "specpatch-manifest.json"
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        logger.warning("The patch manifest %s can't be read: %s", manifest, error)
        return None, None
    return content.get("generation"), content.get("release")

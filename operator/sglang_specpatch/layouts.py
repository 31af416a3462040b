"""Which hooks go where, decided by what the files contain and never by the version they claim.

A member is one SGLang file with its hooks. Each hook is one statement (or one element of a collection) that calls
the added runtime module. Where the EAGLE worker has no zero-step state, drafting can't be switched off: such a tree
gets the fields, and a live update that refuses and a read-back that says why, so that the server starts and serves.
Anything that isn't recognised is refused.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .anchors import (
    AnchorAmbiguous,
    AnchorMissing,
    class_named,
    first_code,
    is_name,
    method_named,
    statement_where,
)
from .edit import EditRefused
from .edits import Edits, Member, Reader
from .fields import FieldStyle, hook_fields
from .liveupdate import SCHEDULER, hook_live_update, hook_request
from .names import RUNTIME_NAME
from .offpath import hook_off_path
from .reservation import hook_reservation
from .result import Reason, Refusal
from .verify_tile import hook_verify_tile
from .worker import WORKER, controller_setup, has_zero_step_state

RESULTS = "srt/managers/scheduler_components/batch_result_processor.py"


@dataclass(frozen=True)
class Layout:
    """What was recognised in a tree, and what its patched members look like.

    `worker_file` is None where the EAGLE worker has no zero-step state, so that nothing is hooked into it.
    """

    field_file: str
    field_style: FieldStyle
    live_update_file: str
    worker_file: str | None
    members: tuple[Member, ...]


def plan(read: Reader, release: str | None) -> Layout:
    """Recognise the tree and compute every patched member, in memory.

    Raises Refusal with UnsupportedSource, UnsupportedWorker or UnknownPatchState; nothing is written either way.
    """
    edits = Edits(read)
    try:
        switchable = has_zero_step_state(read)
        field_file, field_style = hook_fields(edits)
        live_update_file = hook_live_update(edits)
        hook_request(edits, switchable=switchable)
        if switchable:
            _hook_worker(edits)
            _hook_results(edits)
            _hook_idle(edits)
            hook_reservation(edits, read)
            hook_off_path(edits, Edits(read))
        hook_verify_tile(edits, Edits(read))
        worker_file = WORKER if switchable else None
        return Layout(field_file, field_style, live_update_file, worker_file, edits.members())
    except (AnchorMissing, AnchorAmbiguous, EditRefused) as error:
        raise Refusal(
            Reason.UNSUPPORTED_SOURCE,
            f"SGLang {release or 'of unknown release'} is not laid out as expected: {error}. No byte was changed. "
            "Use an unmodified SGLang 0.5.6 or newer that this program knows, or a newer patch program.",
            release=release,
        ) from error


def _hook_worker(edits: Edits) -> None:
    source = edits.open(WORKER)
    worker = class_named(source, "EAGLEWorkerV2")
    source.insert_after(*controller_setup(source, worker), f"{RUNTIME_NAME}.attach(self)")
    forward = method_named(source, worker, "forward_batch_generation")
    source.insert_before(forward.body, first_code(forward), f"{RUNTIME_NAME}.note_forward(self, batch)")
    edits.hooked(WORKER, "threshold controller")
    edits.hooked(WORKER, "forward clock")


def _hook_results(edits: Edits) -> None:
    source = edits.open(RESULTS)
    resolve = method_named(source, class_named(source, "SchedulerBatchResultProcessor"), "_resolve_spec_v2_tokens")
    answer = statement_where(
        resolve.body,
        lambda statement: isinstance(statement, ast.Return) and is_name(statement.value, "predict_tokens"),
        f"{RESULTS}: _resolve_spec_v2_tokens return predict_tokens",
    )
    arguments = {argument.arg for argument in resolve.args.args}
    if not {"self", "result", "batch"} <= arguments:
        raise AnchorMissing(f"{RESULTS}: _resolve_spec_v2_tokens(self, result, batch)")
    source.insert_before(resolve.body, answer, f"{RUNTIME_NAME}.note_result(self, batch, result, predict_tokens)")
    edits.hooked(RESULTS, "step counters")


def _hook_idle(edits: Edits) -> None:
    source = edits.open(SCHEDULER)
    idle = method_named(source, class_named(source, "Scheduler"), "on_idle")
    source.insert_before(idle.body, first_code(idle), f"{RUNTIME_NAME}.note_idle(self)")
    edits.hooked(SCHEDULER, "idle clock")

"""The hooks of the decode off path: a decode step without drafts run as a server without speculation runs it.

They are few and go in together or not at all. A source tree in which one of their places isn't found is patched
without them: its steps without drafts stay one-token verifies, and the server says why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .anchors import (
    AnchorMissing,
    class_named,
    first_code,
    is_self_attribute,
    method_named,
    only,
    statement_where,
)
from .edit import SourceFile
from .edits import Edits, insert_all
from .names import RUNTIME_NAME
from .worker import WORKER, controller_setup

RELAY = "srt/managers/overlap_utils.py"

_READERS = frozenset({"war_fastpath_runner", "last_shared_read_runner"})
_TAIL = "_eagle_prefill_tail_tokens"
_OUTPUT = f"{RUNTIME_NAME}_output"


def hook_off_path(edits: Edits, trial: Edits) -> str | None:
    """Put the hooks into `edits`, or, where a place isn't found, only the reason; returns that reason."""
    reason = insert_all(_insert, edits, trial)
    if reason is not None:
        _attach(edits, reason)
    return reason


def _insert(edits: Edits) -> None:
    _attach(edits, None)
    _hook_steps(edits)
    _hook_prefill(edits)
    _hook_start(edits)
    _hook_relay(edits)


def _attach(edits: Edits, reason: str | None) -> None:
    source, worker = _worker(edits)
    arguments = "self" if reason is None else f"self, {reason!r}"
    source.insert_after(*controller_setup(source, worker), f"{RUNTIME_NAME}.attach_off_path({arguments})")
    edits.hooked(WORKER, "off path" if reason is None else "off path refused")


def _hook_steps(edits: Edits) -> None:
    source, worker = _worker(edits)
    forward = method_named(source, worker, "forward_batch_generation")
    source.insert_before(forward.body, first_code(forward), f"{RUNTIME_NAME}.off_path_forward(self, batch)")
    arguments = [argument.arg for argument in forward.args.args]
    if not {"batch", "on_publish"} <= set(arguments):
        raise AnchorMissing(f"{WORKER}: EAGLEWorkerV2.forward_batch_generation(batch, on_publish)")
    passed = ", ".join(["self", "batch", "on_publish", *(name for name in arguments if name == "grammar_barrier")])
    body, choice = _choice_of_drafting(forward)
    source.insert_before(
        body,
        choice,
        f"if ({_OUTPUT} := {RUNTIME_NAME}.off_path_step({passed})) is not None: return {_OUTPUT}",
    )
    reader = only(
        (node for node in worker.body if isinstance(node, ast.FunctionDef) and node.name in _READERS),
        f"{WORKER}: EAGLEWorkerV2.{' or '.join(sorted(_READERS))}",
    )
    source.insert_before(
        reader.body,
        first_code(reader),
        f"if {RUNTIME_NAME}.target_reads_last(self): return self._target_worker.model_runner",
    )
    edits.hooked(WORKER, "off path step")


def _hook_prefill(edits: Edits) -> None:
    source, _ = _worker(edits)
    extend = method_named(source, class_named(source, "EagleDraftWorker"), "_draft_extend_for_prefill")
    wanted = ("batch", "target_hidden_states", "next_token_ids", "mm_input_embeds")
    if not set(wanted) <= {argument.arg for argument in extend.args.args}:
        raise AnchorMissing(f"{WORKER}: EagleDraftWorker._draft_extend_for_prefill({', '.join(wanted)})")
    if not any(isinstance(node, ast.alias) and node.name == _TAIL for node in ast.walk(source.tree)):
        raise AnchorMissing(f"{WORKER}: import of {_TAIL}")
    passed = ", ".join(("self", *wanted, _TAIL))
    source.insert_before(
        extend.body,
        first_code(extend),
        f"if ({_OUTPUT} := {RUNTIME_NAME}.off_path_prefill({passed})) is not None: return {_OUTPUT}",
    )
    edits.hooked(WORKER, "off path prefill")


def _hook_start(edits: Edits) -> None:
    source, worker = _worker(edits)
    build = method_named(source, worker, "build_adaptive_runtime_state")
    body, chosen = only_in(
        ((inner, node) for inner in _bodies(build) for node in inner if _chooses_graph_runner(node)),
        f"{WORKER}: build_adaptive_runtime_state TargetGraphRunnerCls = …",
    )
    source.insert_after(
        body,
        chosen,
        f"TargetGraphRunnerCls = {RUNTIME_NAME}.off_path_graphs(self, speculative_num_steps, TargetGraphRunnerCls)",
    )
    graphs = method_named(source, worker, "init_cuda_graphs")
    source.insert_after(graphs.body, graphs.body[-1], f"{RUNTIME_NAME}.off_path_ready(self)")
    edits.hooked(WORKER, "off path graphs")


def _hook_relay(edits: Edits) -> None:
    source = edits.open(RELAY)
    relay = class_named(source, "FutureMap")
    resolve = method_named(source, relay, "resolve_seq_lens_cpu")
    copy = statement_where(
        resolve.body,
        lambda statement: (
            isinstance(statement, ast.If)
            and any(is_self_attribute(node, "fwd_prepare_d2h_stream") for node in ast.walk(statement.test))
        ),
        f"{RELAY}: FutureMap.resolve_seq_lens_cpu if self.fwd_prepare_d2h_stream is None …",
    )
    source.insert_before(resolve.body, copy, f"if {RUNTIME_NAME}.lengths_on_host(batch): return")
    edits.hooked(RELAY, "lengths on the host")
    stash = method_named(source, relay, "stash")
    drafts = statement_where(
        stash.body,
        lambda statement: (
            isinstance(statement, ast.If)
            and any(is_self_attribute(node, "need_topk") for node in ast.walk(statement.test))
        ),
        f"{RELAY}: FutureMap.stash if self.need_topk",
    )
    assert isinstance(drafts, ast.If)
    if is_self_attribute(drafts.test, "need_topk"):  # Newer ones leave out themselves what a payload lacks.
        if "payload" not in {argument.arg for argument in stash.args.args}:
            raise AnchorMissing(f"{RELAY}: FutureMap.stash(…, payload)")
        source.insert_before(stash.body, drafts, f"if {RUNTIME_NAME}.relays_bonus_only(payload): return")
        edits.hooked(RELAY, "relay without drafts")
    elif "payload.topk_p is not None" not in ast.unparse(drafts.test):
        raise AnchorMissing(f"{RELAY}: FutureMap.stash if self.need_topk [and payload.topk_p is not None]")


def _worker(edits: Edits) -> tuple[SourceFile, ast.ClassDef]:
    source = edits.open(WORKER)
    return source, class_named(source, "EAGLEWorkerV2")


def only_in(found: Iterator[tuple[list[ast.stmt], ast.stmt]], anchor: str) -> tuple[list[ast.stmt], ast.stmt]:
    """Return the single statement with the body that holds it, or raise as `only` does."""
    places = list(found)
    statement = only((node for _, node in places), anchor)
    return next((body, node) for body, node in places if node is statement)


def _choice_of_drafting(forward: ast.FunctionDef) -> tuple[list[ast.stmt], ast.stmt]:
    """Return the `if` that drafts, or builds the one-token verify for zero steps, and the body that holds it."""
    return only_in(
        ((body, node) for body in _bodies(forward) for node in body if _drafts_or_not(node)),
        f"{WORKER}: forward_batch_generation if … self.speculative_num_steps == 0: …_build_trivial_verify_input(batch)",
    )


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Yield the statement lists of a function, but not the `elif` of an `if`, which begins no line of its own."""
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and not (name == "orelse" and _is_elif(node, statements)):
                yield statements


def _is_elif(node: ast.AST, statements: list[ast.stmt]) -> bool:
    if not (isinstance(node, ast.If) and len(statements) == 1 and isinstance(statements[0], ast.If)):
        return False
    return statements[0].col_offset == node.col_offset


def _drafts_or_not(statement: ast.stmt) -> bool:
    while isinstance(statement, ast.If):
        if ast.unparse(statement.test) == "self.speculative_num_steps == 0":
            return "self._build_trivial_verify_input(batch)" in ast.unparse(statement.body[-1])
        if len(statement.orelse) != 1:
            return False
        statement = statement.orelse[0]
    return False


def _chooses_graph_runner(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == "TargetGraphRunnerCls"
        and not isinstance(statement.value, ast.Constant)
    )

"""Which hooks go where, decided by what the files contain and never by the version they claim.

A member is one SGLang file with its hooks. Each hook is one statement (or one element of a collection) that calls
the added runtime module. Layouts known here: fields annotated in `server_args.py` or in
`arg_groups/fields/spec.py`; live updates in `managers/scheduler.py` or in
`managers/scheduler_components/internal_state.py`. Anything else is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .anchors import (
    AnchorAmbiguous,
    AnchorMissing,
    class_named,
    first_code,
    is_self_attribute,
    method_named,
    only,
    statement_where,
)
from .edit import EditRefused, SourceFile
from .names import FIELD, RUNTIME_NAME, RUNTIME_PARENT_MODULE
from .result import Reason, Refusal
from .worker import WORKER, require_zero_step_worker

Reader = Callable[[str], bytes | None]
"""Returns the bytes of a file of the tree by its path inside `sglang/`, or None."""

FIELD_FILES = {"srt/arg_groups/fields/spec.py": "Spec", "srt/server_args.py": "ServerArgs"}
SCHEDULER = "srt/managers/scheduler.py"
INTERNAL_STATE = "srt/managers/scheduler_components/internal_state.py"
REQUESTS = "srt/entrypoints/http_server.py"
RESULTS = "srt/managers/scheduler_components/batch_result_processor.py"

_ANCHOR_FIELD = "speculative_adaptive_config"
_HELP = (
    "Stop drafting when this many requests, or more, decode together; below it drafting goes on. "
    "0 = always speculate, 1 = never. Can be changed while serving through /set_internal_state."
)


@dataclass(frozen=True)
class Member:
    """One patched SGLang file: its path inside `sglang/`, its bytes before and after, its hooks by name."""

    path: str
    before: bytes
    after: bytes
    hooks: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """What was recognised in a tree, and what its patched members look like."""

    field_file: str
    live_update_file: str
    worker_file: str
    members: tuple[Member, ...]


class _Edits:
    """The files being edited, read once each; keeps the hook names for the log."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._files: dict[str, SourceFile] = {}
        self._hooks: dict[str, list[str]] = {}

    def has(self, path: str) -> bool:
        return path in self._files or self._read(path) is not None

    def open(self, path: str) -> SourceFile:
        if path not in self._files:
            data = self._read(path)
            if data is None:
                raise AnchorMissing(f"{path}: no such file")
            self._files[path] = SourceFile(path, data)
            self._refuse_patched(self._files[path])
        return self._files[path]

    def hooked(self, path: str, hook: str) -> None:
        if path not in self._hooks:
            self._import_runtime(self._files[path])
        self._hooks.setdefault(path, []).append(hook)

    def members(self) -> tuple[Member, ...]:
        return tuple(
            Member(path, self._files[path].data, self._files[path].result(), tuple(hooks))
            for path, hooks in sorted(self._hooks.items())
        )

    @staticmethod
    def _refuse_patched(source: SourceFile) -> None:
        if any(_imports_runtime(statement) for statement in source.tree.body):
            raise Refusal(
                Reason.UNKNOWN_PATCH_STATE,
                f"{source.path} of the source tree already carries this patch. Give the pristine SGLang of the image "
                "as the source: reinstall sglang there, or take the patched folder off PYTHONPATH.",
            )

    @staticmethod
    def _import_runtime(source: SourceFile) -> None:
        first = next((statement for statement in source.tree.body if _is_sglang_import(statement)), None)
        if first is None:
            raise AnchorMissing(f"{source.path}: a module-level import from sglang")
        source.insert_before(source.tree.body, first, f"from {RUNTIME_PARENT_MODULE} import {RUNTIME_NAME}")


def plan(read: Reader, release: str | None) -> Layout:
    """Recognise the tree and compute every patched member, in memory.

    Raises Refusal with UnsupportedSource, UnsupportedWorker or UnknownPatchState; nothing is written either way.
    """
    edits = _Edits(read)
    try:
        require_zero_step_worker(read)
        field_file = _hook_field(edits)
        _hook_worker(edits)
        live_update_file = _hook_live_update(edits)
        _hook_results(edits)
        _hook_idle(edits)
        _hook_request(edits)
        return Layout(field_file, live_update_file, WORKER, edits.members())
    except (AnchorMissing, AnchorAmbiguous, EditRefused) as error:
        raise Refusal(
            Reason.UNSUPPORTED_SOURCE,
            f"SGLang {release or 'of unknown release'} is not laid out as expected: {error}. No byte was changed. "
            "Use an unmodified SGLang 0.5.14 or newer that this program knows, or a newer patch program.",
            release=release,
        ) from error


def _hook_field(edits: _Edits) -> str:
    declared = [path for path, owner in FIELD_FILES.items() if edits.has(path) and _declares(edits, path, owner)]
    if len(declared) != 1:
        where = " and ".join(declared) or " or ".join(FIELD_FILES)
        error = AnchorAmbiguous if declared else AnchorMissing
        raise error(f"the annotated field {_ANCHOR_FIELD} in {where}: {len(declared)} found, exactly one is needed")
    path = declared[0]
    source = edits.open(path)
    owner = class_named(source, FIELD_FILES[path])
    anchor = statement_where(owner.body, _is_anchor_field, f"{path}: field {_ANCHOR_FIELD}")
    assert isinstance(anchor, ast.AnnAssign)
    metadata = "".join(f", {ast.unparse(mark)}" for mark in _namespace_marks(anchor, path))
    source.insert_after(
        owner.body,
        anchor,
        f"{FIELD}: A[int, Arg(help={_HELP!r}, type_parser={RUNTIME_NAME}.parse_threshold){metadata}] = 0",
    )
    edits.hooked(path, "field and flag")
    return path


def _hook_worker(edits: _Edits) -> None:
    source = edits.open(WORKER)
    worker = class_named(source, "EAGLEWorkerV2")
    init = method_named(source, worker, "__init__")
    controller = statement_where(init.body, _builds_controller, f"{WORKER}: EAGLEWorkerV2.__init__ adaptive controller")
    source.insert_after(init.body, controller, f"{RUNTIME_NAME}.attach(self)")
    forward = method_named(source, worker, "forward_batch_generation")
    source.insert_before(forward.body, first_code(forward), f"{RUNTIME_NAME}.note_forward(self, batch)")
    edits.hooked(WORKER, "threshold controller")
    edits.hooked(WORKER, "forward clock")


def _hook_live_update(edits: _Edits) -> str:
    component = edits.has(INTERNAL_STATE)
    path, owner_name = (INTERNAL_STATE, "SchedulerInternalStateController") if component else (SCHEDULER, "Scheduler")
    source = edits.open(path)
    owner = class_named(source, owner_name)
    scheduler = "self.scheduler" if component else "self"
    if component:
        table = _handler_table(method_named(source, owner, "_update_handlers"), path)
        check = f"{RUNTIME_NAME}.update_check({scheduler}, UpdateRejected)"
        source.insert_element(table, f"_UpdateHandler({check}, _override)", key=FIELD)
    else:
        setter = method_named(source, owner, "set_internal_state")
        source.insert_element(_allow_list(setter, path), f'"{FIELD}"')
        verdict = statement_where(
            setter.body, _is_verdict, f"{path}: {owner_name}.set_internal_state if_success = True"
        )
        source.insert_after(
            setter.body, verdict, f"if_success = {RUNTIME_NAME}.accepts_update({scheduler}, server_args_dict)"
        )
    getter = method_named(source, owner, "get_internal_state")
    answer, state = _readback(getter, path)
    source.insert_before(getter.body, answer, f"{RUNTIME_NAME}.add_readback({scheduler}, {state})")
    edits.hooked(path, "live update")
    edits.hooked(path, "read back")
    return path


def _hook_results(edits: _Edits) -> None:
    source = edits.open(RESULTS)
    resolve = method_named(source, class_named(source, "SchedulerBatchResultProcessor"), "_resolve_spec_v2_tokens")
    answer = statement_where(
        resolve.body,
        lambda statement: isinstance(statement, ast.Return) and _is_name(statement.value, "predict_tokens"),
        f"{RESULTS}: _resolve_spec_v2_tokens return predict_tokens",
    )
    arguments = {argument.arg for argument in resolve.args.args}
    if not {"self", "result", "batch"} <= arguments:
        raise AnchorMissing(f"{RESULTS}: _resolve_spec_v2_tokens(self, result, batch)")
    source.insert_before(resolve.body, answer, f"{RUNTIME_NAME}.note_result(self, batch, result, predict_tokens)")
    edits.hooked(RESULTS, "step counters")


def _hook_idle(edits: _Edits) -> None:
    source = edits.open(SCHEDULER)
    idle = method_named(source, class_named(source, "Scheduler"), "on_idle")
    source.insert_before(idle.body, first_code(idle), f"{RUNTIME_NAME}.note_idle(self)")
    edits.hooked(SCHEDULER, "idle clock")


def _hook_request(edits: _Edits) -> None:
    """Web frameworks turn "3" into 3 and true into 1 before a handler sees them, so the body itself is checked."""
    source = edits.open(REQUESTS)
    route = only(
        (
            node
            for node in source.tree.body
            if isinstance(node, ast.AsyncFunctionDef)
            and node.name == "set_internal_state"
            and "request" in {argument.arg for argument in node.args.args}
        ),
        f"{REQUESTS}: async set_internal_state(…, request)",
    )
    source.insert_before(route.body, first_code(route), f"await {RUNTIME_NAME}.check_request(request)")
    edits.hooked(REQUESTS, "live update request")


def _declares(edits: _Edits, path: str, owner_name: str) -> bool:
    owners = [node for node in edits.open(path).tree.body if isinstance(node, ast.ClassDef) and node.name == owner_name]
    return any(_is_anchor_field(statement) for owner in owners for statement in owner.body)


def _is_anchor_field(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and _is_name(statement.target, _ANCHOR_FIELD)


def _namespace_marks(anchor: ast.AnnAssign, path: str) -> Iterator[ast.expr]:
    """Yield the `NS(...)` marks of the neighbour, which the new field shares."""
    annotation = anchor.annotation
    if not (isinstance(annotation, ast.Subscript) and _is_name(annotation.value, "A")):
        raise AnchorMissing(f"{path}: field {_ANCHOR_FIELD} annotated with A[...]")
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
    for part in parts:
        if isinstance(part, ast.Call) and _is_name(part.func, "NS"):
            yield part


def _builds_controller(statement: ast.stmt) -> bool:
    """Match `if <adaptive>: self.adaptive_controller = AdaptiveController(...)`."""
    return isinstance(statement, ast.If) and any(
        isinstance(inner, ast.Assign)
        and is_self_attribute(inner.targets[0], "adaptive_controller")
        and isinstance(inner.value, ast.Call)
        and _is_name(inner.value.func, "AdaptiveController")
        for inner in statement.body
    )


def _handler_table(function: ast.FunctionDef, path: str) -> ast.Dict:
    returns = (node for node in function.body if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict))
    table = only(returns, f"{path}: _update_handlers return {{...}}").value
    assert isinstance(table, ast.Dict)
    return table


def _allow_list(function: ast.FunctionDef, path: str) -> ast.List | ast.Set:
    """Return the collection of `args_allow_update = set([...])`, or of a set display."""
    assigned = statement_where(
        function.body,
        lambda node: isinstance(node, ast.Assign) and _is_name(node.targets[0], "args_allow_update"),
        f"{path}: Scheduler.set_internal_state args_allow_update",
    )
    assert isinstance(assigned, ast.Assign)
    collections = [node for node in ast.walk(assigned.value) if isinstance(node, ast.List | ast.Set)]
    return only(collections, f"{path}: the keys of args_allow_update")


def _is_verdict(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and _is_name(statement.targets[0], "if_success")
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is True
    )


def _readback(function: ast.FunctionDef, path: str) -> tuple[ast.Return, str]:
    """Return the final `return GetInternalStateReqOutput(internal_state=…)` and the name of its dictionary."""
    answer = only(
        (node for node in function.body if isinstance(node, ast.Return)), f"{path}: get_internal_state return"
    )
    if isinstance(answer.value, ast.Call) and _is_name(answer.value.func, "GetInternalStateReqOutput"):
        for keyword in answer.value.keywords:
            names = {node.id for node in ast.walk(keyword.value) if isinstance(node, ast.Name)}
            local = names & {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_stored(node)}
            if keyword.arg == "internal_state" and len(local) == 1:
                return answer, local.pop()
    raise AnchorMissing(f"{path}: get_internal_state return GetInternalStateReqOutput(internal_state=…)")


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_sglang_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "sglang"


def _imports_runtime(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.ImportFrom)
        and statement.module == RUNTIME_PARENT_MODULE
        and any(alias.name == RUNTIME_NAME for alias in statement.names)
    )

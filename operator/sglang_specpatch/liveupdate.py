"""The hooks of `/set_internal_state` and of the read-back in `/server_info`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .anchors import AnchorMissing, class_named, first_code, is_name, method_named, only, statement_where
from .edits import Edits
from .names import FIELDS, RUNTIME_NAME, EngineField

SCHEDULER = "srt/managers/scheduler.py"
INTERNAL_STATE = "srt/managers/scheduler_components/internal_state.py"
REQUESTS = "srt/entrypoints/http_server.py"


def hook_live_update(edits: Edits) -> str:
    """Let the scheduler take the live keys, all checked before any is applied, and report; returns the file."""
    component = edits.has(INTERNAL_STATE)
    path, owner_name = (INTERNAL_STATE, "SchedulerInternalStateController") if component else (SCHEDULER, "Scheduler")
    source = edits.open(path)
    owner = class_named(source, owner_name)
    scheduler = "self.scheduler" if component else "self"
    if component:
        table = _handler_table(method_named(source, owner, "_update_handlers"), path)
        check = f"{RUNTIME_NAME}.update_check({scheduler}, UpdateRejected)"
        for field in _live_fields():
            source.insert_element(table, f"_UpdateHandler({check}, _override)", key=field.name)
    else:
        setter = method_named(source, owner, "set_internal_state")
        allowed = _allow_list(setter, path)
        for field in _live_fields():
            source.insert_element(allowed, f'"{field.name}"')
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


def hook_request(edits: Edits, *, switchable: bool) -> None:
    """Check the request as it came over HTTP; where drafting can't be switched, refuse it there with the reason.

    Web frameworks turn "3" into 3 and true into 1 before a handler sees them, so the body itself is checked. Older
    releases answer "updated" whatever the scheduler said.
    """
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
    check = "check_request" if switchable else "refuse_request"
    source.insert_before(route.body, first_code(route), f"await {RUNTIME_NAME}.{check}(request)")
    edits.hooked(REQUESTS, "live update request" if switchable else "live update refused")


def _live_fields() -> Iterator[EngineField]:
    return (field for field in FIELDS if field.live)


def _handler_table(function: ast.FunctionDef, path: str) -> ast.Dict:
    returns = (node for node in function.body if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict))
    table = only(returns, f"{path}: _update_handlers return {{...}}").value
    assert isinstance(table, ast.Dict)
    return table


def _allow_list(function: ast.FunctionDef, path: str) -> ast.List | ast.Set:
    """Return the collection of `args_allow_update = set([...])`, or of a set display."""
    assigned = statement_where(
        function.body,
        lambda node: isinstance(node, ast.Assign) and is_name(node.targets[0], "args_allow_update"),
        f"{path}: Scheduler.set_internal_state args_allow_update",
    )
    assert isinstance(assigned, ast.Assign)
    collections = [node for node in ast.walk(assigned.value) if isinstance(node, ast.List | ast.Set)]
    return only(collections, f"{path}: the keys of args_allow_update")


def _is_verdict(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and is_name(statement.targets[0], "if_success")
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is True
    )


def _readback(function: ast.FunctionDef, path: str) -> tuple[ast.Return, str]:
    """Return the final `return GetInternalStateReqOutput(internal_state=…)` and the name of its dictionary."""
    answer = only(
        (node for node in function.body if isinstance(node, ast.Return)), f"{path}: get_internal_state return"
    )
    if isinstance(answer.value, ast.Call) and is_name(answer.value.func, "GetInternalStateReqOutput"):
        for keyword in answer.value.keywords:
            names = {node.id for node in ast.walk(keyword.value) if isinstance(node, ast.Name)}
            local = names & {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_stored(node)}
            if keyword.arg == "internal_state" and len(local) == 1:
                return answer, local.pop()
    raise AnchorMissing(f"{path}: get_internal_state return GetInternalStateReqOutput(internal_state=…)")


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)

"""Facts about a SGLang source tree that decide how its HTTP interface answers, read from the sources themselves."""

from __future__ import annotations

import ast
from pathlib import Path

_SETTERS = ("srt/managers/scheduler_components/internal_state.py", "srt/managers/scheduler.py")


def takes_only_numbers(tree: Path) -> bool:
    """Whether /set_internal_state's values are typed as numbers, so that other values never reach the scheduler."""
    source = ast.parse((tree / "srt/managers/io_struct.py").read_text("utf-8"))
    for node in ast.walk(source):
        if isinstance(node, ast.ClassDef) and node.name == "SetInternalStateReq":
            return any(
                isinstance(field, ast.AnnAssign) and "Union[int, float]" in ast.unparse(field.annotation)
                for field in node.body
            )
    return False


def answers_true_always(tree: Path) -> bool:
    """Whether the scheduler reports `updated=True` on every path, also when it refused."""
    for setter in _SETTERS:
        path = tree / setter
        if not path.exists():
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "set_internal_state":
                answers = _reported(node)
                if answers:
                    return all(answer == "True" for answer in answers)
    return False


def _reported(function: ast.FunctionDef) -> list[str]:
    return [
        ast.unparse(keyword.value)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "updated"
    ]

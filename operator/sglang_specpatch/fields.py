"""The hooks that give ServerArgs its new fields and the command line their flags.

Two styles are known: a field annotated `A[type, Arg(...)]`, from which SGLang makes the flag itself, and a plain
dataclass field beside a call of `add_argument`. Both hang on one field that every release has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from .anchors import AnchorAmbiguous, AnchorMissing, class_named, is_name, method_named, statement_where
from .edit import SourceFile
from .edits import Edits
from .names import FIELDS, RUNTIME_NAME, EngineField

FIELD_FILES = {"srt/arg_groups/fields/spec.py": "Spec", "srt/server_args.py": "ServerArgs"}
ANCHOR_FIELD = "speculative_num_draft_tokens"
_ANCHOR_FLAG = "--speculative-num-draft-tokens"


class FieldStyle(Enum):
    """How a release declares fields and flags."""

    ANNOTATED = "annotated field"
    PLAIN = "dataclass field and `add_argument`"


def hook_fields(edits: Edits) -> tuple[str, FieldStyle]:
    """Add the fields and flags; return the file they are in and how it declares them.

    Raises AnchorMissing or AnchorAmbiguous naming file and anchor.
    """
    declared = [path for path, owner in FIELD_FILES.items() if edits.has(path) and _declares(edits, path, owner)]
    if len(declared) != 1:
        where = " and ".join(declared) or " or ".join(FIELD_FILES)
        error = AnchorAmbiguous if declared else AnchorMissing
        raise error(f"the field {ANCHOR_FIELD} in {where}: {len(declared)} found, exactly one is needed")
    path = declared[0]
    source = edits.open(path)
    owner = class_named(source, FIELD_FILES[path])
    anchor = statement_where(owner.body, _is_anchor, f"{path}: field {ANCHOR_FIELD}")
    assert isinstance(anchor, ast.AnnAssign)
    annotation = anchor.annotation
    if isinstance(annotation, ast.Subscript) and is_name(annotation.value, "A"):
        style = FieldStyle.ANNOTATED
        metadata = "".join(f", {ast.unparse(mark)}" for mark in _namespace_marks(annotation))
        for field in FIELDS:
            source.insert_after(owner.body, anchor, _annotated(field, metadata))
    else:
        style = FieldStyle.PLAIN
        for field in FIELDS:
            source.insert_after(owner.body, anchor, f"{field.name}: {field.kind.__name__} = {field.default!r}")
        _add_flags(source, owner)
    edits.hooked(path, "fields and flags")
    return path, style


def _declares(edits: Edits, path: str, owner_name: str) -> bool:
    owners = [node for node in edits.open(path).tree.body if isinstance(node, ast.ClassDef) and node.name == owner_name]
    return any(_is_anchor(statement) for owner in owners for statement in owner.body)


def _is_anchor(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and is_name(statement.target, ANCHOR_FIELD)


def _namespace_marks(annotation: ast.Subscript) -> Iterator[ast.expr]:
    """Yield the `NS(...)` marks of the neighbour, which the new fields share."""
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
    for part in parts:
        if isinstance(part, ast.Call) and is_name(part.func, "NS"):
            yield part


def _annotated(field: EngineField, metadata: str) -> str:
    arg = f"Arg(help={field.help!r}, type_parser={RUNTIME_NAME}.{field.parser})"
    return f"{field.name}: A[{field.kind.__name__}, {arg}{metadata}] = {field.default!r}"


def _add_flags(source: SourceFile, owner: ast.ClassDef) -> None:
    place = f"{source.path}: {owner.name}.add_cli_args"
    adding = method_named(source, owner, "add_cli_args")
    neighbour = statement_where(adding.body, _adds_anchor_flag, f'{place} add_argument("{_ANCHOR_FLAG}", …)')
    assert isinstance(neighbour, ast.Expr)
    assert isinstance(neighbour.value, ast.Call)
    call = ast.unparse(neighbour.value.func)
    for field in FIELDS:
        default = f"{owner.name}.{field.name}"
        arguments = f"{field.flag!r}, type={RUNTIME_NAME}.{field.parser}, default={default}, help={field.help!r}"
        source.insert_after(adding.body, neighbour, f"{call}({arguments})")


def _adds_anchor_flag(statement: ast.stmt) -> bool:
    """Match `<parser>.add_argument("--…", …)` of the anchor's flag, under whatever spellings come behind it."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr == "add_argument"
        and isinstance(statement.value.func.value, ast.Name)
        and bool(statement.value.args)
        and isinstance(statement.value.args[0], ast.Constant)
        and statement.value.args[0].value == _ANCHOR_FLAG
    )

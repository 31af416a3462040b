"""The hook of the tile that the triton attention backend takes for short extends."""

from __future__ import annotations

import ast

from .anchors import AnchorMissing, function_named, statement_where
from .edits import Edits, insert_all
from .names import RUNTIME_NAME

KERNELS = ("kernels/ops/attention/extend_attention.py", "srt/layers/attention/triton_ops/extend_attention.py")
_SIZES = "_get_block_sizes_for_extend_attention("
_USED = ("Lq", "BLOCK_M", "BLOCK_N")


def hook_verify_tile(edits: Edits, trial: Edits) -> None:
    """Have the tile chosen where SGLang has chosen its own; where the place isn't found, SGLang's stays."""
    insert_all(_insert, edits, trial)


def _insert(edits: Edits) -> None:
    path = next((path for path in KERNELS if edits.has(path)), KERNELS[0])
    source = edits.open(path)
    extend = function_named(source.tree, "extend_attention_fwd", path)
    if "max_len_extend" not in {argument.arg for argument in extend.args.args}:
        raise AnchorMissing(f"{path}: extend_attention_fwd(…, max_len_extend)")
    chosen = statement_where(extend.body, _chooses_tile, f"{path}: extend_attention_fwd …, BLOCK_M, BLOCK_N, … = …")
    call = f"{RUNTIME_NAME}.extend_tile(max_len_extend, {', '.join(_USED)})"
    source.insert_after(extend.body, chosen, f"BLOCK_M, BLOCK_N = {call}")
    edits.hooked(path, "verify tile")


def _chooses_tile(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and _SIZES in ast.unparse(statement.value)

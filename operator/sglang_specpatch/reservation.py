"""The hook of the cache slots that are reserved for a decode step, where SGLang would reserve too few."""

from __future__ import annotations

import ast
from collections.abc import Callable

from .anchors import function_named, is_name, statement_where
from .edits import Edits
from .names import RUNTIME_NAME

SIZING = "srt/mem_cache/allocation_sizing.py"
CONTEXT = "srt/runtime_context.py"


def hook_reservation(edits: Edits, read: Callable[[str], bytes | None]) -> None:
    """Have slots reserved for the longest step where SGLang (0.5.18) looks at the mode in force alone.

    Others look at the largest mode, or at the configured one.
    """
    context = read(CONTEXT)
    if context is None or not _follows_the_mode(ast.parse(context)):
        return
    source = edits.open(SIZING)
    sizing = function_named(source.tree, "get_alloc_len_per_decode", SIZING)
    tokens = statement_where(
        sizing.body,
        lambda node: isinstance(node, ast.Assign) and is_name(node.targets[0], "spec_tokens"),
        f"{SIZING}: get_alloc_len_per_decode spec_tokens = …",
    )
    source.insert_after(sizing.body, tokens, f"spec_tokens = {RUNTIME_NAME}.most_draft_tokens(spec_tokens)")
    edits.hooked(SIZING, "slots for drafts")


def _follows_the_mode(context: ast.Module) -> bool:
    """Match a `max_speculative_num_draft_tokens` that returns `spec.speculative_num_draft_tokens` as it is."""
    names = {node.name for node in context.body if isinstance(node, ast.FunctionDef)}
    if "max_speculative_num_draft_tokens" not in names:
        return False
    largest = function_named(context, "max_speculative_num_draft_tokens", CONTEXT)
    returned = (node.value for node in ast.walk(largest) if isinstance(node, ast.Return) and node.value is not None)
    return any(ast.unparse(value) == "spec.speculative_num_draft_tokens" for value in returned)

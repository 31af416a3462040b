"""Edits that let a patched SGLang tree run on a CPU: made in the tests' own copy, never part of the product.

Each one puts a statement at the start of one function or behind it. The function is found in the syntax tree; a
release in which it can't be found, or is found twice, is refused before anything runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class EditRefused(Exception):
    """A tree does not look as expected; the text names release file and function."""


@dataclass(frozen=True)
class Edit:
    """Put `statement` at the start of `function`, or behind it, in the one of `files` that a release has."""

    files: tuple[str, ...]
    function: str
    statement: str
    needs: tuple[str, ...] = ()
    """Parameters of the function that the statement relies on, in the function's order."""
    behind: bool = False
    since: tuple[int, ...] = ()
    """First release that needs the edit."""
    before: tuple[int, ...] = (1,)
    """First release that needs it no more."""
    owner: str | None = None
    """Class of the function."""


def _attention(file: str, function: str, reference: str, *needs: str) -> Edit:
    files = f"kernels/ops/attention/{file}.py", f"srt/layers/attention/triton_ops/{file}.py"
    return Edit(files, function, f'return __import__("reference_attention").{reference}(**locals())', needs)


def _kernel(function: str, files: tuple[str, ...], *needs: str) -> Edit:
    statement = f'{function} = __import__("reference_kernels").{function}({function})'
    return Edit(files, function, statement, needs, behind=True)


EDITS = (
    # Triton's kernels take seconds in its interpreter; a reference in torch takes milliseconds.
    _attention(
        "decode_attention", "decode_attention_fwd", "decode",
        "q", "k_buffer", "v_buffer", "o", "kv_indptr", "kv_indices", "sm_scale",
    ),
    _attention(
        "extend_attention", "extend_attention_fwd", "extend",
        "q_extend", "k_extend", "v_extend", "o_extend", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices",
        "custom_mask", "is_causal", "mask_indptr", "sm_scale",
    ),
    _kernel(
        "generate_draft_decode_kv_indices",
        ("kernels/ops/speculative/cache_locs.py", "srt/speculative/triton_ops/cache_locs.py"),
        "req_pool_indices", "req_to_token", "paged_kernel_lens", "kv_indices", "kv_indptr", "positions",
        "kv_indices_stride", "kv_indptr_stride",
    ),
    _kernel(
        "create_flashinfer_kv_indices_triton",
        ("kernels/ops/attention/kv_indices.py", "kernels/ops/kvcache/kv_indices.py",
         "srt/layers/attention/triton_ops/kv_indices.py"),
        "req_to_token_ptr", "req_pool_indices_ptr", "page_kernel_lens_ptr", "kv_indptr", "kv_start_idx",
        "kv_indices_ptr", "req_to_token_ptr_stride",
    ),
    # The triton backend reads the full mask; on a CPU SGLang makes the one for its own CPU kernel.
    Edit(
        ("srt/speculative/eagle_utils.py",), "default_tree_mask_mode", "return TreeMaskMode.FULL_MASK",
        since=(0, 5, 16),
    ),
    # The first releases with a zero-step state know the kernels of GPUs only.
    Edit(
        ("srt/speculative/eagle_utils.py",), "build_tree_kernel_efficient",
        "sgl_build_tree_kernel_efficient = __import__('sgl_kernel').build_tree_kernel_efficient_cpu",
        before=(0, 5, 16),
    ),
    Edit(
        ("srt/speculative/eagle_utils.py",), "verify_tree_greedy_func",
        "return __import__('sgl_kernel').verify_tree_greedy(**locals())",
        ("predicts", "accept_index", "accept_token_num", "candidates", "retrieve_index", "retrieve_next_token",
         "retrieve_next_sibling", "target_predict"),
        before=(0, 5, 16),
    ),
    Edit(
        ("srt/speculative/triton_ops/cache_locs.py",), "assign_extend_cache_locs_func", "_is_cuda = True",
        before=(0, 5, 16),
    ),
    # With a GPU a step is prepared while the last one runs. On a CPU SGLang forbids that, though it can.
    Edit(
        ("srt/arg_groups/speculative_hook.py",), "_disable_overlap_schedule_for_cpu", "return None",
        since=(0, 5, 16),
    ),
    # Without scaling, latent attention finds no rotary embedding for a CPU.
    Edit(("srt/layers/rotary_embedding/factory.py",), "get_rope_wrapper", "device = None", ("device",)),
    # Grammars mask with a kernel for GPUs alone.
    Edit(
        ("srt/constrained/xgrammar_backend.py",), "apply_vocab_mask",
        "return __import__('xgrammar').apply_token_bitmask_inplace(logits, vocab_mask)",
        ("logits", "vocab_mask"), before=(0, 5, 18), owner="XGrammarGrammar",
    ),
    # It takes memory that is pinned for a GPU.
    Edit(
        ("srt/constrained/xgrammar_backend.py",), "_allocate_token_bitmask",
        "return __import__('xgrammar').allocate_token_bitmask(batch_size, vocab_size)",
        ("vocab_size", "batch_size"), since=(0, 5, 17), before=(0, 5, 18),
    ),
)  # fmt: skip


def prepare(package: Path, release: str, edits: Iterable[Edit]) -> None:
    """Make edits in a `sglang` package; raises EditRefused and then has changed nothing."""
    number = tuple(int(part) for part in release.split(".")[:3])
    texts: dict[Path, str] = {}
    for edit in edits:
        if edit.since <= number < edit.before:
            file = _place(package, edit)
            texts[file] = _edited(texts.get(file) or file.read_text(), edit, str(file))
    for file, text in texts.items():
        # A new file, since the tree may share its files with another one.
        partial = file.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(file)


def _place(package: Path, edit: Edit) -> Path:
    found = [package / name for name in edit.files if (package / name).is_file()]
    if len(found) != 1:
        raise EditRefused(f"{package}: {edit.function} is looked for in one of {edit.files}, {len(found)} are there")
    return found[0]


def _edited(text: str, edit: Edit, file: str) -> str:
    body = ast.parse(text).body
    if edit.owner is not None:
        owners = [node for node in body if isinstance(node, ast.ClassDef) and node.name == edit.owner]
        body = [statement for owner in owners for statement in owner.body]
    matching = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == edit.function]
    if len(matching) != 1:
        raise EditRefused(f"{file}: {len(matching)} functions {edit.function}, exactly one is needed")
    function = matching[0]
    names = [argument.arg for argument in function.args.args]
    if [name for name in names if name in edit.needs] != list(edit.needs):
        raise EditRefused(f"{file}: {edit.function} has not the parameters {', '.join(edit.needs)}")
    first = function.body[0]
    lines = text.splitlines(keepends=True)
    if edit.behind:
        lines.insert(function.end_lineno or 0, " " * function.col_offset + edit.statement + "\n")
    else:
        lines.insert(first.lineno - 1, " " * first.col_offset + edit.statement + "\n")
    return "".join(lines)

"""Attention in plain torch, in place of the kernels of SGLang's triton backend.

The backend's own metadata says which slots of the KV cache belong to which request, so what is tested (slots,
lengths, positions, masks) stays SGLang's; only the arithmetic is ours. One request after the other: speed does not
matter here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SPEED_ONLY = {
    "attn_logits", "attn_lse", "num_kv_splits", "max_kv_splits", "has_mla", "use_pdl", "page_size", "max_len_extend",
    "skip_prefix_custom_mask", "extend_seq_lens_cpu", "enable_lean", "uneven_batch",
}  # fmt: skip
"""Arguments of the kernels that don't change the result; with those called lean_…, which are scratch space."""
PLAIN = (None, 0, 0.0, 1.0, -1, False)
"""Values of other arguments that ask for nothing special."""


def decode(
    *,
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    sm_scale: float,
    **rest: Any,
) -> None:
    """Attend from one new token of each request to its slots; its own K/V are in the cache already.

    `q` and `o`: (requests, heads, size); `kv_indices[kv_indptr[i]:kv_indptr[i + 1]]`: slots of request i.
    """
    _require_plain(rest)
    ends = kv_indptr.tolist()
    for row in range(q.shape[0]):
        slots = kv_indices[ends[row] : ends[row + 1]]
        o[row] = _attend(q[row : row + 1], _rows(k_buffer, slots), _rows(v_buffer, slots), sm_scale, None)[0]


def extend(
    *,
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    mask_indptr: Tensor | None,
    is_causal: bool,
    sm_scale: float | None,
    **rest: Any,
) -> None:
    """Attend from several new tokens of each request to its cached slots and to the new tokens themselves.

    `q_extend`: (tokens, heads, size), the tokens of request i at `qo_indptr[i]:qo_indptr[i + 1]`; `custom_mask`: for
    each request, new tokens x (cached + new) in one flat tensor, beginning at `mask_indptr[i]`.
    """
    _require_plain(rest)
    scale = q_extend.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    starts, ends = qo_indptr.tolist(), kv_indptr.tolist()
    masks = mask_indptr.tolist() if custom_mask is not None and mask_indptr is not None else []
    for row in range(len(starts) - 1):
        new = slice(starts[row], starts[row + 1])
        slots = kv_indices[ends[row] : ends[row + 1]]
        count, cached = starts[row + 1] - starts[row], len(slots)
        if masks and custom_mask is not None:
            mask = custom_mask[masks[row] : masks[row] + count * (cached + count)].view(count, cached + count).bool()
        else:
            mask = torch.ones(count, cached + count, dtype=torch.bool)
            if is_causal:
                mask[:, cached:] = torch.tril(mask[:, cached:])
        keys, values = k_extend[new], v_extend[new]
        # Latent attention caches other rows than it attends to where nothing is cached yet.
        if cached:
            keys, values = torch.cat([_rows(k_buffer, slots), keys]), torch.cat([_rows(v_buffer, slots), values])
        o_extend[new] = _attend(q_extend[new], keys, values, scale, mask)


def _rows(buffer: Tensor, slots: Tensor) -> Tensor:
    """Return (slots, heads, size) from a cache of slots, or of pages of slots."""
    return buffer.reshape(-1, *buffer.shape[-2:])[slots.long()]


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Return (tokens, heads, size of v); heads of k and v are shared by equal groups of heads of q."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def _require_plain(arguments: dict[str, Any]) -> None:
    special = {
        name
        for name, value in arguments.items()
        if name not in SPEED_ONLY and not name.startswith("lean_") and (torch.is_tensor(value) or value not in PLAIN)
    }
    if special:
        raise NotImplementedError(f"reference attention can't do {', '.join(sorted(special))}")

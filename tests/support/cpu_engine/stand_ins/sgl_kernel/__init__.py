"""The few operations of SGLang's kernel package that speculative decoding calls on a CPU, written in plain torch.

Drafts are chains here (top-k 1). Tensors that receive a result are filled in place, as the real operations do it.
Every other name can be imported, since SGLang imports many that it never calls, and raises when it is called.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

FULL_MASK = 0
"""`TreeMaskMode` of the triton backend: cached and new tokens."""

__version__ = "0"


def _record_nothing(tensor: Tensor, stream: object) -> None:
    """Take the place of `Tensor.record_stream`, which torch does not have on a CPU: there is one stream only."""


def _wait_for_nothing() -> None:
    """Take the place of `torch.cuda.synchronize`, which SGLang up to 0.5.15 calls on a CPU too."""


torch.Tensor.record_stream = _record_nothing
torch.cuda.synchronize = _wait_for_nothing


def assign_extend_cache_locs_cpu(
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, width: int
) -> None:
    """Write the slots of positions starts[i] … ends[i] - 1 of each request one after the other."""
    at = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        slots[at : at + end - start] = table[request, start:end].to(slots.dtype)
        at += end - start


def assign_req_to_token_pool_cpu(
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, width: int
) -> None:
    """Enter new slots, one request after the other, at positions starts[i] … ends[i] - 1."""
    at = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[request, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor, table: Tensor, lengths: Tensor, slots: Tensor, width: int, topk: int, steps: int
) -> None:
    """Write the slots of the `topk * steps` positions behind each request."""
    count = topk * steps
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        slots[row * count : (row + 1) * count] = table[request, length : length + count].to(slots.dtype)


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    tokens: int,
    mask_mode: int,
) -> None:
    """Describe a chain of `tokens` tokens behind each request: positions, who follows whom, who sees whom."""
    if topk != 1 or mask_mode != FULL_MASK:
        raise NotImplementedError(f"topk {topk}, tree mask mode {mask_mode}")
    at = 0
    step = torch.arange(tokens)
    for row, length in enumerate(lengths.tolist()):
        positions[row * tokens : (row + 1) * tokens] = length + step
        retrieve_index[row] = row * tokens + step
        retrieve_next_token[row] = torch.where(step + 1 < tokens, step + 1, -1)
        retrieve_next_sibling[row] = -1
        mask = tree_mask[at : at + tokens * (length + tokens)].view(tokens, length + tokens)
        mask[:, :length] = True
        mask[:, length:] = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        at += mask.numel()


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down each chain as long as the draft is what the target says; count the drafts that were right."""
    for row in range(candidates.shape[0]):
        here, right = 0, 0
        accept_index[row, 0] = retrive_index[row, 0]
        while True:
            predicts[retrive_index[row, here]] = target_predict[row, here].to(predicts.dtype)
            following = int(retrive_next_token[row, here])
            if following < 0 or candidates[row, following] != target_predict[row, here]:
                break
            right += 1
            accept_index[row, right] = retrive_index[row, following]
            here = following
        accept_token_num[row] = right


def verify_tree_greedy(
    retrieve_index: Tensor, retrieve_next_token: Tensor, retrieve_next_sibling: Tensor, topk: int, **named: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same for a caller that spells the names right and wants what was filled."""
    verify_tree_greedy_cpu(
        retrive_index=retrieve_index,
        retrive_next_token=retrieve_next_token,
        retrive_next_sibling=retrieve_next_sibling,
        **named,
    )
    return named["predicts"], named["accept_index"], named["accept_token_num"]


def fill_bonus_tokens_cpu(tokens: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """Write the last accepted token of each request."""
    flat = tokens.reshape(-1)
    for row, length in enumerate(lengths.tolist()):
        bonus[row] = flat[row * stride + length - 1]


def copy_all_layer_kv_cache_cpu(*arguments: Any) -> None:
    """Do nothing: accepted tokens of a chain stand in their slots already."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return missing

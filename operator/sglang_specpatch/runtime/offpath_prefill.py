"""What a draft model reads of a prefill: for each row the token that follows it, its cache slot and its position."""

from __future__ import annotations

from importlib import import_module

from .offpath_types import Batch, Tensor


def prefill_rows(batch: Batch, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, slots and positions of a prefill's rows, each int64 [rows], without waiting for the device.

    The draft model reads a state of the target together with the token that follows it. `tail`, [requests], is what
    follows the last row of each: the token sampled, or the prompt's next one where it is prefilled in chunks.
    """
    torch = import_module("torch")
    tokens = batch.input_ids
    counts = torch.tensor(batch.extend_lens, dtype=torch.int64).to(tokens.device, non_blocking=True)
    ends = counts.cumsum(0)
    following = torch.empty_like(tokens)
    following[:-1] = tokens[1:]
    following[ends - 1] = tail
    # Row r of a request that ends before row `end` is at r - (end - count) + (length - count).
    rows = len(tokens)
    offsets = torch.repeat_interleave(batch.seq_lens - ends, counts, output_size=rows)
    positions = torch.arange(rows, device=tokens.device) + offsets
    return following.to(torch.int64), batch.out_cache_loc.to(torch.int64), positions

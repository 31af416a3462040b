"""What the patch does with tensors, in a patched SGLang and an interpreter that has torch; prints one JSON object.

Run with the word of a tile. SGLang's own extend kernel runs in triton's interpreter.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import torch

KERNELS = ("sglang.kernels.ops.attention.extend_attention", "sglang.srt.layers.attention.triton_ops.extend_attention")
RUNTIME = "sglang.srt.speculative.specpatch"
HEADS, KEY_HEADS, SIZE = 4, 2, 64
VERIFIED = 4
PREFIXES = (5, 130, 17)


def publish(tile: str) -> None:
    """Make a server's config that of this process."""
    server_args = importlib.import_module("sglang.srt.server_args")
    args = server_args.ServerArgs(model_path="dummy", speculative_verify_tile=tile)
    server_args.set_global_server_args_for_scheduler(args)


def kernel() -> Any:
    for name in KERNELS:
        try:
            return importlib.import_module(name).extend_attention_fwd
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(KERNELS[0])


def verify() -> dict[str, object]:
    """Verify a chain of drafts behind prefixes of several lengths; compare with attention written out."""
    torch.manual_seed(0)
    rows, slots = VERIFIED * len(PREFIXES), sum(PREFIXES)
    q, k, v = (torch.randn(rows, heads, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    keys, values = (torch.randn(slots + 1, KEY_HEADS, SIZE) for _ in range(2))
    indices = torch.randperm(slots) + 1
    queries = torch.arange(0, rows + 1, VERIFIED)
    prefixes = torch.tensor([0, *itertools.accumulate(PREFIXES)])
    masks = [torch.ones(VERIFIED, prefix + VERIFIED).tril(prefix).bool() for prefix in PREFIXES]
    starts = torch.tensor([0, *itertools.accumulate(mask.numel() for mask in masks)])
    out = torch.zeros_like(q)
    extend = kernel()
    scales = {name: 1.0 for name in ("k_scale", "v_scale") if name in inspect.signature(extend).parameters}
    extend(
        q, k, v, out, keys, values, queries, prefixes, indices, torch.cat([mask.flatten() for mask in masks]), True,
        starts, VERIFIED, **scales,
    )  # fmt: skip
    worst = 0.0
    for number, mask in enumerate(masks):
        own = slice(number * VERIFIED, (number + 1) * VERIFIED)
        cached = indices[prefixes[number] : prefixes[number + 1]]
        all_keys, all_values = torch.cat([keys[cached], k[own]]), torch.cat([values[cached], v[own]])
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in (q[own], all_keys, all_values)), attn_mask=mask, enable_gqa=True
        ).transpose(0, 1)
        worst = max(worst, float((out[own] - expected).abs().max()))
    return {"worst": worst, "longest": out[VERIFIED : 2 * VERIFIED].flatten().tolist()}


def tiles_of_longer_extends() -> list[list[int]]:
    tile = importlib.import_module(f"{RUNTIME}.verify_tile").extend_tile
    return [list(tile(*asked)) for asked in ((17, 128, 64, 32), (4, 576, 32, 64), (16, 128, 64, 32))]


def wrong_rows(cases: int = 50) -> int:
    """Count prefills, whole ones and chunks behind prefixes, whose rows for the draft model are not as written out."""
    rows_of = importlib.import_module(f"{RUNTIME}.offpath_prefill").prefill_rows
    draw, wrong = random.Random(1), 0
    for _ in range(cases):
        prefixes = [draw.choice([0, draw.randrange(200)]) for _ in range(draw.randint(1, 6))]
        extends = [draw.randint(1, 40) for _ in prefixes]
        prompts = [[draw.randrange(1000) for _ in range(extend)] for extend in extends]
        tail = [draw.randrange(1000) for _ in prefixes]
        batch = SimpleNamespace(
            input_ids=torch.tensor([token for prompt in prompts for token in prompt]),
            extend_lens=extends,
            seq_lens=torch.tensor([prefix + extend for prefix, extend in zip(prefixes, extends, strict=True)]),
            out_cache_loc=torch.arange(sum(extends), dtype=torch.int32) + 7,
        )
        tokens, slots, positions = rows_of(batch, torch.tensor(tail))
        follow = [t for prompt, last in zip(prompts, tail, strict=True) for t in [*prompt[1:], last]]
        where = [p + r for p, extend in zip(prefixes, extends, strict=True) for r in range(extend)]
        right = tokens.tolist() == follow and positions.tolist() == where
        same_slots = slots.tolist() == batch.out_cache_loc.tolist()
        wrong += not (right and same_slots and {tokens.dtype, slots.dtype, positions.dtype} == {torch.int64})
    return wrong


def main() -> None:
    publish(sys.argv[1])
    in_use = importlib.import_module(f"{RUNTIME}.verify_tile").in_use
    seen = {"before": in_use(), "verify": verify(), "after": in_use()}
    print(json.dumps({**seen, "tiles": tiles_of_longer_extends(), "wrong rows": wrong_rows()}))


if __name__ == "__main__":
    main()

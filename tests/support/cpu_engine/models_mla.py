"""The same target with multi-head latent attention: DeepSeek's, without experts.

All heads share one key for positions and one compressed row for keys and values; the draft stays what it is.
"""

from __future__ import annotations

import math

from cpu_engine.models import (
    DISTURBANCE,
    EMBEDDED,
    HEAD,
    HEADS,
    HIDDEN,
    LAYERS,
    LOOKBACK,
    Draw,
    Matrix,
    Shared,
    Weights,
    add_layer,
    column_zero,
    config,
    joined,
    selecting,
    turned_back,
    zeros,
)

RANK = EMBEDDED
"""Size of the compressed row: it holds an embedding."""
NOPE = HEAD
"""Dimensions of a head's query and key without positions, besides HEAD with positions."""


def target_settings() -> dict[str, object]:
    """Return the configuration of the target."""
    return config("DeepseekV2ForCausalLM", LAYERS, HEADS, HEADS) | {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "kv_lora_rank": RANK,
        "qk_rope_head_dim": HEAD,
        "qk_nope_head_dim": NOPE,
        "v_head_dim": HEAD,
        "head_dim": HEAD,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "moe_layer_freq": 1,
        "first_k_dense_replace": LAYERS,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
    }


def target_weights(shared: Shared, draw: Draw) -> Weights:
    """Return the weights of the target under the names of a DeepSeek checkpoint."""
    weights: Weights = {
        "model.embed_tokens.weight": shared.embedding,
        "model.norm.weight": [1.0] * HIDDEN,
        "lm_head.weight": shared.head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        attention = first_attention(shared) if layer == 0 else random_attention(draw)
        add_layer(weights, prefix, attention, draw, DISTURBANCE)
        weights[f"{prefix}self_attn.kv_a_proj_with_mqa.weight"] = weights.pop(f"{prefix}self_attn.kv_a_proj.weight")
        weights[f"{prefix}self_attn.kv_a_layernorm.weight"] = [1.0] * RANK
    return weights


def first_attention(shared: Shared) -> dict[str, Matrix]:
    """Return the layer that adds what stands a few tokens back; see `models.first_attention`.

    Pairs of dimensions lie side by side here. The compressed row is the embedding, of size 1 where the layer's input,
    with its empty half, has 1/sqrt(2) more.
    """
    scale = shared.score * ((NOPE + HEAD) / HEAD) ** 0.25
    queries: Matrix = []
    expanded: Matrix = []
    for index, distance in enumerate(LOOKBACK):
        turned = [scale * x for pair in turned_back(distance) for x in pair]
        queries += [*zeros(NOPE, HIDDEN), *column_zero(turned, HIDDEN)]
        value = [[math.sqrt(2) * x for x in row[:RANK]] for row in shared.value(index)]
        expanded += [*zeros(NOPE, RANK), *value]
    key = column_zero([scale, 0.0] * (HEAD // 2), HIDDEN)
    return {
        "q": queries,
        "kv_a": [*selecting(RANK, HIDDEN, 0), *key],
        "kv_b": expanded,
        "o": joined(*shared.outputs),
    }


def random_attention(draw: Draw) -> dict[str, Matrix]:
    """Return a layer whose attention depends on what stands where."""
    return {
        "q": draw.matrix(HEADS * (NOPE + HEAD), HIDDEN, 2.0),
        "kv_a": [*draw.matrix(RANK, HIDDEN), *draw.matrix(HEAD, HIDDEN, 2.0)],
        "kv_b": draw.matrix(HEADS * (NOPE + HEAD), RANK),
        "o": draw.matrix(HIDDEN, HEADS * HEAD, DISTURBANCE),
    }

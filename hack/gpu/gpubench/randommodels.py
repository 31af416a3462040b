"""A target and an EAGLE-3 draft with random weights, for tests of equality: needs torch and safetensors.

Weights that a server makes up itself prove nothing: outputs fall into cycles and hardly use attention, and no draft is
ever right. Here everything is random at the scale of trained weights, with one structure in common:

- Every embedding has the same value in dimension 0. Query and key rows that read only that make constant vectors, and
  rotary embedding makes the score of two constants depend on the distance of their positions alone: a head can be made
  to look a chosen number of tokens back.
- The first layer of the target adds what stands a few tokens back to the residual (embeddings fill its first half,
  this the second), the later layers disturb both at random, and the head maps them to the next token.
- The draft computes the undisturbed part, from embeddings and from the target's hidden states, through its own KV
  cache. So it is right often and wrong often, and a slot, position or hidden state that is wrong costs acceptance.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gpubench.models import DRAFT_ARCHITECTURE, TARGET_ARCHITECTURE, Pair, Shape

TARGET = Shape(
    hidden=1024,
    layers=8,
    heads=8,
    kv_heads=2,
    head_size=128,
    intermediate=2816,
    vocabulary=4096,
    dtype="float16",
    rope_theta=10_000.0,
)
DRAFT_HEADS = 32
EMBEDDED = TARGET.hidden // 2
"""Dimensions that embeddings fill."""
LOOKBACK = (2, 3, 5, 7, 11, 13, 17, 19)
"""How many tokens the heads of the target's first layer look back."""
FROM_HIDDEN = 3
"""The one of these distances that the draft learns from the target's hidden states, not from embeddings."""
CONSTANT = 3.0
"""Value of dimension 0 in every embedding; the other dimensions have size 1."""
SHARPNESS = 5.0
"""Factor on the score of a looking-back head: how much of its attention lies on the one token."""
MEMORY = 0.5
"""Size of what a looking-back head adds, relative to an embedding."""
DISTURBANCE = 0.1
"""Size of what each later block adds, relative to an embedding."""
CONFIDENCE = 4.0
"""Standard deviation of the logits."""

Tensor = Any
"""torch is not installed where types are checked."""
Weights = dict[str, Tensor]


class Draw:
    """Random matrices from one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> Tensor:
        """Return normal entries that map vectors of size 1 per entry to size `scale` per entry."""
        return torch.randn(rows, columns, generator=self._generator) * (scale / math.sqrt(columns))


def looking_back(distance: int, columns: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return query and key rows of one head whose score depends on positions alone and is highest at `distance`.

    Both read dimension 0. Pair (i, i + half) turns with frequency theta^(-2i/head): the query is turned back by
    `distance`, so that the score is the sum over the pairs of cos((d - distance) * frequency).
    """
    half = TARGET.head_size // 2
    frequencies = TARGET.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / TARGET.head_size)
    turned = torch.cat([torch.cos(distance * frequencies), -torch.sin(distance * frequencies)])
    query, key = torch.zeros(TARGET.head_size, columns), torch.zeros(TARGET.head_size, columns)
    query[:, 0] = scale * turned.float()
    key[:half, 0] = scale
    return query, key


def selecting(rows: int, columns: int, first: int, factor: float = 1.0) -> Tensor:
    """Return the rows `first`… of a unit matrix with `columns` columns, times a factor."""
    matrix = torch.zeros(rows, columns)
    matrix[torch.arange(rows), first + torch.arange(rows)] = factor
    return matrix


class Shared:
    """What target and draft have in common."""

    def __init__(self, draw: Draw) -> None:
        head, hidden = TARGET.head_size, TARGET.hidden
        rows = draw.matrix(TARGET.vocabulary, EMBEDDED - 1)
        rows *= math.sqrt(hidden) / rows.norm(dim=1, keepdim=True)
        self.embedding = torch.zeros(TARGET.vocabulary, hidden)
        self.embedding[:, 0] = CONSTANT
        self.embedding[:, 1:EMBEDDED] = rows
        self.head = draw.matrix(TARGET.vocabulary, hidden, CONFIDENCE)
        read = [draw.matrix(head, EMBEDDED, 1 / math.sqrt(2)) for _ in range(TARGET.kv_heads)]
        self.values = [torch.cat([part, torch.zeros(head, hidden - EMBEDDED)], dim=1) for part in read]
        written = [draw.matrix(hidden - EMBEDDED, head, math.sqrt(2) * MEMORY) for _ in LOOKBACK]
        self.outputs = [torch.cat([torch.zeros(EMBEDDED, head), part]) for part in written]
        size = math.sqrt(1 + CONSTANT**2 / hidden)
        self.score = math.sqrt(SHARPNESS * math.sqrt(head)) * size / CONSTANT
        """Scale of query and key rows: a pair adds SHARPNESS to a score, after the division by sqrt(head size)."""

    def value(self, index: int) -> Tensor:
        """Return the value rows that the head of LOOKBACK[index] reads in the target."""
        return self.values[index // (len(LOOKBACK) // TARGET.kv_heads)]


def target_weights(shared: Shared, draw: Draw) -> Weights:
    """Return the weights of the target under the names of a Llama checkpoint."""
    weights: Weights = {
        "model.embed_tokens.weight": shared.embedding,
        "model.norm.weight": torch.ones(TARGET.hidden),
        "lm_head.weight": shared.head,
    }
    for layer in range(TARGET.layers):
        attention = _first_attention(shared) if layer == 0 else _random_attention(draw)
        _add_layer(weights, f"model.layers.{layer}.", attention, draw, DISTURBANCE)
    return weights


def _first_attention(shared: Shared) -> Weights:
    sides = [looking_back(distance, TARGET.hidden, shared.score) for distance in LOOKBACK]
    return {
        "q": torch.cat([query for query, _ in sides]),
        "k": torch.cat([key for _, key in sides[: TARGET.kv_heads]]),
        "v": torch.cat(shared.values),
        "o": torch.cat(shared.outputs, dim=1),
    }


def _random_attention(draw: Draw) -> Weights:
    query, kv = TARGET.heads * TARGET.head_size, TARGET.kv_heads * TARGET.head_size
    return {
        "q": draw.matrix(query, TARGET.hidden, 2.0),
        "k": draw.matrix(kv, TARGET.hidden, 2.0),
        "v": draw.matrix(kv, TARGET.hidden),
        "o": draw.matrix(TARGET.hidden, query, DISTURBANCE),
    }


def draft_weights(shared: Shared, draw: Draw) -> Weights:
    """Return the weights of the draft under the names of an EAGLE-3 checkpoint.

    At position t it sees the embedding of token t+1 and the target's hidden state of token t. Its heads: the token
    itself, by its embedding; the hidden state taken away from the residual again; what the target's heads look at.
    """
    hidden = TARGET.hidden
    size = math.sqrt(1 + len(LOOKBACK) * MEMORY**2)
    disturbed = math.sqrt(size**2 + 4 * DISTURBANCE**2)
    captured = [selecting(hidden, hidden, 0, size / disturbed)]
    captured += [draw.matrix(hidden, hidden, 0.1) for _ in range(2)]
    weights: Weights = {
        "fc.weight": torch.cat(captured, dim=1),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": shared.head,
        "midlayer.hidden_norm.weight": torch.ones(hidden),
    }
    heads = [*_copying_heads(0, EMBEDDED, 1.0), *_copying_heads(hidden, hidden, -size)]
    heads += [_memory_head(shared, index) for index in range(len(LOOKBACK))]
    nothing = (0, torch.zeros(TARGET.head_size, 2 * hidden), torch.zeros(hidden, TARGET.head_size))
    heads += [nothing] * (DRAFT_HEADS - len(heads))
    sides = [looking_back(distance, 2 * hidden, shared.score) for distance, _, _ in heads]
    attention = {
        "q": torch.cat([query for query, _ in sides]),
        "k": torch.cat([key for _, key in sides]),
        "v": torch.cat([value for _, value, _ in heads]),
        "o": torch.cat([output for _, _, output in heads], dim=1),
    }
    _add_layer(weights, "midlayer.", attention, draw, 0.05)
    return weights


Head = tuple[int, Tensor, Tensor]
"""Distance it looks back, value rows, output columns."""


def _copying_heads(start: int, dimensions: int, factor: float) -> list[Head]:
    """Return heads that add `factor` times some dimensions of the layer's own input, from `start`, to the residual."""
    head, hidden = TARGET.head_size, TARGET.hidden
    return [
        (0, selecting(head, 2 * hidden, start + first), selecting(head, hidden, first, factor).T.contiguous())
        for first in range(0, dimensions, head)
    ]


def _memory_head(shared: Shared, index: int) -> Head:
    """Return the draft's counterpart of one head of the target's first layer."""
    distance, value = LOOKBACK[index], shared.value(index)
    nothing = torch.zeros(TARGET.head_size, TARGET.hidden)
    if distance == FROM_HIDDEN:
        # The hidden state that comes with token t+1 is that of token t: it stands one nearer.
        return distance - 1, torch.cat([nothing, value], dim=1), shared.outputs[index]
    return distance, torch.cat([value, nothing], dim=1), shared.outputs[index]


def _add_layer(weights: Weights, prefix: str, attention: Weights, draw: Draw, size: float) -> None:
    """Add one decoder layer with a random feed-forward block of this size."""
    weights |= {f"{prefix}self_attn.{name}_proj.weight": matrix for name, matrix in attention.items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}{name}.weight"] = torch.ones(TARGET.hidden)
    weights[f"{prefix}mlp.gate_proj.weight"] = draw.matrix(TARGET.intermediate, TARGET.hidden)
    weights[f"{prefix}mlp.up_proj.weight"] = draw.matrix(TARGET.intermediate, TARGET.hidden)
    # The product of a gate and an up projection of size 1 has a size of about 0.6.
    weights[f"{prefix}mlp.down_proj.weight"] = draw.matrix(TARGET.hidden, TARGET.intermediate, size / 0.6)


def write_pair(folder: Path, dtype: str, *, seed: int = 1) -> Pair:
    """Write both models in `dtype` (`float16` or `bfloat16`); the same bytes for a seed."""
    draw = Draw(seed)
    shared = Shared(draw)
    target = replace(TARGET, dtype=dtype)
    draft = replace(target, layers=1, heads=DRAFT_HEADS, kv_heads=DRAFT_HEADS)
    _write(folder / "target", target_weights(shared, draw), target.config(TARGET_ARCHITECTURE), dtype)
    config = draft.config(DRAFT_ARCHITECTURE, draft_vocab_size=TARGET.vocabulary)
    _write(folder / "draft", draft_weights(shared, draw), config, dtype)
    return Pair(target=str(folder / "target"), draft=str(folder / "draft"), dummy=False)


def _write(folder: Path, weights: Weights, config: dict[str, object], dtype: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kind: Any = getattr(torch, dtype)
    save_file({name: tensor.to(kind).contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1))

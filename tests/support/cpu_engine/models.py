"""Tiny random fp32 models, written without torch: a target and an EAGLE-3 draft that often guesses what it will say.

Equal outputs prove something only if outputs depend on everything that may go wrong, and acceptance only if some
drafts are right and some wrong. So weights are random, with one structure in common:

- Every embedding has the same size and the same value in dimension 0. Query and key rows that read only that make
  constant vectors, and rotary embedding makes the score of two constants depend on the distance of their positions
  alone. Thus a head can be made to look a chosen number of tokens back.
- The first layer of the target adds what stands a few tokens back to the residual (embeddings fill its first half,
  this the second), the later layers disturb both at random, and the head maps them to the next token.
- The draft computes the undisturbed part. It takes the newest tokens from their embeddings and older ones from the
  target's hidden states, through its own KV cache: a slot, position or hidden state that is wrong costs acceptance.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

VOCABULARY = 512
HIDDEN = 128
EMBEDDED = HIDDEN // 2
"""Dimensions that embeddings fill."""
LAYERS = 8
HEAD = 32
HEADS = 4
KV_HEADS = 2
DRAFT_HEADS = 16
INTERMEDIATE = 256
ROPE_THETA = 10000.0
CONTEXT = 2048
BOS, EOS = 1, 2
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

LOOKBACK = (2, 3, 5, 7)
"""How many tokens the heads of the target's first layer look back."""
FROM_HIDDEN = 3
"""The one of these distances that the draft learns from the target's hidden states, not from embeddings."""
CONSTANT = 3.0
"""Value of dimension 0 in every embedding; the other dimensions have size 1."""
SHARPNESS = 9.0
"""Factor on the score of a looking-back head: how much of its attention lies on the one token."""
MEMORY = 0.6
"""Size of what a looking-back head adds, relative to an embedding."""
DISTURBANCE = 0.1
"""Size of what each later block adds, relative to an embedding: the draft is right with six of ten next tokens."""
CONFIDENCE = 4.0
"""Standard deviation of the logits."""

Matrix = list[list[float]]


class Draw:
    """Random matrices from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> Matrix:
        """Return normal entries that map vectors of size 1 per entry to size `scale` per entry."""
        deviation, normal = scale / math.sqrt(columns), self._random.gauss
        return [[normal(0.0, deviation) for _ in range(columns)] for _ in range(rows)]


def looking_back(distance: int, columns: int, scale: float) -> tuple[Matrix, Matrix]:
    """Return query and key rows of one head whose score depends on positions alone and is highest at `distance`.

    Both read dimension 0. Pair (i, i + HEAD/2) turns with frequency THETA^(-2i/HEAD): the query is turned back by
    `distance`, so that the score is the sum over the pairs of cos((d - distance) * frequency).
    """
    pairs = turned_back(distance)
    query = [scale * x for x, _ in pairs] + [scale * y for _, y in pairs]
    key = [scale] * len(pairs) + [0.0] * len(pairs)
    return column_zero(query, columns), column_zero(key, columns)


def turned_back(distance: int) -> list[tuple[float, float]]:
    """Return the pairs of a vector that rotary embedding turns to (1, 0), (1, 0)… at position `distance`."""
    angles = [distance * ROPE_THETA ** (-2 * pair / HEAD) for pair in range(HEAD // 2)]
    return [(math.cos(angle), -math.sin(angle)) for angle in angles]


def column_zero(values: list[float], columns: int) -> Matrix:
    """Return a matrix with these values in column 0."""
    return [[value] + [0.0] * (columns - 1) for value in values]


def joined(*parts: Matrix) -> Matrix:
    """Return matrices side by side."""
    return [[x for row in rows for x in row] for rows in zip(*parts, strict=True)]


def of_size(row: list[float], square: float) -> list[float]:
    """Return a vector stretched so that its squares add up to `square`."""
    factor = math.sqrt(square / sum(x * x for x in row))
    return [factor * x for x in row]


def zeros(rows: int, columns: int) -> Matrix:
    """Return a matrix of zeros."""
    return [[0.0] * columns for _ in range(rows)]


def selecting(rows: int, columns: int, first: int, factor: float = 1.0) -> Matrix:
    """Return the rows `first`… of a unit matrix with `columns` columns, times a factor."""
    return [[factor if column == first + row else 0.0 for column in range(columns)] for row in range(rows)]


def transposed(matrix: Matrix) -> Matrix:
    """Return the transposed matrix."""
    return [list(column) for column in zip(*matrix, strict=True)]


class Shared:
    """What target and draft have in common."""

    def __init__(self, draw: Draw) -> None:
        rows = draw.matrix(VOCABULARY, EMBEDDED - 1)
        self.embedding = [[CONSTANT, *of_size(row, HIDDEN), *[0.0] * (HIDDEN - EMBEDDED)] for row in rows]
        self.head = draw.matrix(VOCABULARY, HIDDEN, CONFIDENCE)
        read = [draw.matrix(HEAD, EMBEDDED, 1 / math.sqrt(2)) for _ in range(KV_HEADS)]
        self.values = [joined(rows, zeros(HEAD, HIDDEN - EMBEDDED)) for rows in read]
        written = [draw.matrix(HIDDEN - EMBEDDED, HEAD, math.sqrt(2) * MEMORY) for _ in LOOKBACK]
        self.outputs = [zeros(EMBEDDED, HEAD) + rows for rows in written]
        size = math.sqrt(1 + CONSTANT**2 / HIDDEN)
        self.score = math.sqrt(SHARPNESS * math.sqrt(HEAD)) * size / CONSTANT
        """Scale of query and key rows: the product of two of them is SHARPNESS after SGLang's 1/sqrt(HEAD)."""

    def value(self, index: int) -> Matrix:
        """Return the value rows that the head of LOOKBACK[index] reads in the target."""
        return self.values[index // (len(LOOKBACK) // KV_HEADS)]


Weights = dict[str, Matrix | list[float]]


def target_weights(shared: Shared, draw: Draw) -> Weights:
    """Return the weights of the target under the names of a Llama checkpoint."""
    weights: Weights = {
        "model.embed_tokens.weight": shared.embedding,
        "model.norm.weight": [1.0] * HIDDEN,
        "lm_head.weight": shared.head,
    }
    for layer in range(LAYERS):
        attention = first_attention(shared) if layer == 0 else random_attention(draw)
        add_layer(weights, f"model.layers.{layer}.", attention, draw, DISTURBANCE)
    return weights


def first_attention(shared: Shared) -> dict[str, Matrix]:
    """Return the layer that adds what stands a few tokens back."""
    sides = [looking_back(distance, HIDDEN, shared.score) for distance in LOOKBACK]
    return {
        "q": [row for query, _ in sides for row in query],
        "k": [row for _, key in sides[:KV_HEADS] for row in key],
        "v": [row for value in shared.values for row in value],
        "o": joined(*shared.outputs),
    }


def random_attention(draw: Draw) -> dict[str, Matrix]:
    """Return a layer whose attention depends on what stands where."""
    return {
        "q": draw.matrix(HEADS * HEAD, HIDDEN, 2.0),
        "k": draw.matrix(KV_HEADS * HEAD, HIDDEN, 2.0),
        "v": draw.matrix(KV_HEADS * HEAD, HIDDEN),
        "o": draw.matrix(HIDDEN, HEADS * HEAD, DISTURBANCE),
    }


def draft_weights(shared: Shared, draw: Draw) -> Weights:
    """Return the weights of the draft under the names of an EAGLE-3 checkpoint.

    At position t it sees the embedding of token t+1 and the target's hidden state of token t. Its heads: the token
    itself, by its embedding; the hidden state taken away from the residual again; what the target's heads look at.
    """
    size = math.sqrt(1 + len(LOOKBACK) * MEMORY**2)
    disturbed = math.sqrt(size**2 + 4 * DISTURBANCE**2)
    captured = joined(
        selecting(HIDDEN, HIDDEN, 0, size / disturbed),
        draw.matrix(HIDDEN, HIDDEN, 0.1),
        draw.matrix(HIDDEN, HIDDEN, 0.1),
    )
    weights: Weights = {
        "fc.weight": captured,
        "norm.weight": [1.0] * HIDDEN,
        "lm_head.weight": shared.head,
        "midlayer.hidden_norm.weight": [1.0] * HIDDEN,
    }
    heads = [*copying_heads(0, EMBEDDED, 1.0), *copying_heads(HIDDEN, HIDDEN, -size)]
    heads += [memory_head(shared, index) for index in range(len(LOOKBACK))]
    # transformers wants a number of heads that divides the hidden size.
    heads += [(0, zeros(HEAD, 2 * HIDDEN), zeros(HIDDEN, HEAD))] * (DRAFT_HEADS - len(heads))
    sides = [looking_back(distance, 2 * HIDDEN, shared.score) for distance, _, _ in heads]
    attention = {
        "q": [row for query, _ in sides for row in query],
        "k": [row for _, key in sides for row in key],
        "v": [row for _, value, _ in heads for row in value],
        "o": joined(*(output for _, _, output in heads)),
    }
    add_layer(weights, "midlayer.", attention, draw, 0.05)
    return weights


Head = tuple[int, Matrix, Matrix]
"""Distance it looks back, value rows, output columns."""


def copying_heads(start: int, dimensions: int, factor: float) -> Iterator[Head]:
    """Yield heads that add `factor` times some dimensions of the layer's own input, from `start`, to the residual."""
    for first in range(0, dimensions, HEAD):
        value = selecting(HEAD, 2 * HIDDEN, start + first)
        yield 0, value, transposed(selecting(HEAD, HIDDEN, first, factor))


def memory_head(shared: Shared, index: int) -> Head:
    """Return the draft's counterpart of one head of the target's first layer."""
    distance, value, nothing = LOOKBACK[index], shared.value(index), zeros(HEAD, HIDDEN)
    if distance == FROM_HIDDEN:
        # The hidden state that comes with token t+1 is that of token t: it stands one nearer.
        return distance - 1, joined(nothing, value), shared.outputs[index]
    return distance, joined(value, nothing), shared.outputs[index]


def add_layer(weights: Weights, prefix: str, attention: dict[str, Matrix], draw: Draw, mlp: float) -> None:
    """Add one decoder layer with a random feed-forward block of size `mlp`."""
    weights |= {f"{prefix}self_attn.{name}_proj.weight": matrix for name, matrix in attention.items()}
    weights |= {f"{prefix}{name}.weight": [1.0] * HIDDEN for name in ("input_layernorm", "post_attention_layernorm")}
    weights[f"{prefix}mlp.gate_proj.weight"] = draw.matrix(INTERMEDIATE, HIDDEN)
    weights[f"{prefix}mlp.up_proj.weight"] = draw.matrix(INTERMEDIATE, HIDDEN)
    # The product of a gate and an up projection of size 1 has a size of about 0.6.
    weights[f"{prefix}mlp.down_proj.weight"] = draw.matrix(HIDDEN, INTERMEDIATE, mlp / 0.6)


def config(architecture: str, layers: int, heads: int, kv_heads: int, **more: object) -> dict[str, object]:
    """Return the configuration of a Llama of this shape."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "head_dim": HEAD,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCABULARY,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **more,
    }


def target_settings() -> dict[str, object]:
    """Return the configuration of the target."""
    return config("LlamaForCausalLM", LAYERS, HEADS, KV_HEADS)


def draft_settings() -> dict[str, object]:
    """Return the configuration of the draft."""
    return config("LlamaForCausalLMEagle3", 1, DRAFT_HEADS, DRAFT_HEADS, draft_vocab_size=VOCABULARY)


def write_safetensors(place: Path, weights: Weights) -> None:
    """Write fp32 tensors: length of the header, header in JSON, data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = array("f")
    for name, tensor in sorted(weights.items()):
        rows = [row for row in tensor if isinstance(row, list)]
        shape = [len(rows), len(rows[0])] if rows else [len(tensor)]
        start = len(data) * data.itemsize
        data.extend(x for row in rows for x in row) if rows else data.extend(x for x in tensor if isinstance(x, float))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data) * data.itemsize]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    place.write_bytes(struct.pack("<Q", len(head)) + head + data.tobytes())


def write(folder: Path, weights: Weights, settings: dict[str, object]) -> Path:
    """Write one model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL, "clean_up_tokenization_spaces": False})
    )
    return folder


def tokenizer() -> dict[str, object]:
    """Return a tokenizer of words: special tokens, single characters, then w62, w63…"""
    characters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ-+.,:;\"'[]{}()"
    words = [*SPECIAL.values(), *characters]
    words += [f"w{number}" for number in range(len(words), VOCABULARY)]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": word, **plain} for number, word in enumerate(SPECIAL.values())],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": SPECIAL["unk_token"],
        },
    }

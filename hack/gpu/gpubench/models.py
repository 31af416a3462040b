"""Model folders that hold a configuration and no weights: the server makes them up (`--load-format dummy`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama's sizes. `heads` x `head_size` may differ from `hidden`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    dtype: str
    rope_theta: float = 500_000.0
    context: int = 8192

    def config(self, architecture: str, **more: object) -> dict[str, object]:
        """Return the configuration as a checkpoint has it."""
        return {
            "architectures": [architecture],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_theta,
            "torch_dtype": self.dtype,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **more,
        }


TARGET_ARCHITECTURE = "LlamaForCausalLM"
DRAFT_ARCHITECTURE = "LlamaForCausalLMEagle3"

LLAMA_8B = Shape(
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_size=128,
    intermediate=14336,
    vocabulary=128_256,
    dtype="bfloat16",
)
EAGLE3_8B = Shape(
    hidden=4096,
    layers=1,
    heads=32,
    kv_heads=8,
    head_size=128,
    intermediate=14336,
    vocabulary=128_256,
    dtype="bfloat16",
)
DRAFT_VOCABULARY = 32_000


@dataclass(frozen=True)
class Pair:
    """A target and its draft: names on the hub, or folders. `dummy`: their weights are made up by the server."""

    target: str
    draft: str
    dummy: bool


def dummy_pair(folder: Path) -> Pair:
    """Write the 8B pair's configurations into `folder`."""
    target = LLAMA_8B.config(TARGET_ARCHITECTURE)
    draft = EAGLE3_8B.config(DRAFT_ARCHITECTURE, draft_vocab_size=DRAFT_VOCABULARY)
    for name, config in (("target", target), ("draft", draft)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1))
    return Pair(target=str(folder / "target"), draft=str(folder / "draft"), dummy=True)

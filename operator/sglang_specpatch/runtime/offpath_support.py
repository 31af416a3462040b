"""Where a step without drafts may be run as a decode step: what was proven, what was not, what can't be.

Two kinds of obstacle: what can't work (`impossible`), and what nobody has shown to work (`unproven`), which
`--speculative-off-path decode` tries all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .offpath_types import Runner, Worker

ATTENTION_BACKENDS = frozenset({"triton", "flashinfer", "fa3", "torch_native"})
LATENT_ATTENTION_BACKENDS = frozenset({"triton", "torch_native"})
CACHES = frozenset({"MHATokenToKVPool", "MLATokenToKVPool"})

_IMPOSSIBLE_FLAGS = ("enable_dp_attention", "enable_mixed_chunk", "enable_hisparse")
_UNPROVEN_FLAGS = (
    "enable_lora",
    "enable_hierarchical_cache",
    "enable_lmcache",
    "enable_unified_memory",
    "enable_torch_compile",
    "speculative_use_rejection_sampling",
    "disaggregation_decode_enable_offload_kvcache",
)
_UNPROVEN_SIZES = ("pp_size", "dcp_size", "attn_cp_size")


@dataclass(frozen=True)
class Obstacle:
    """Why not, as a clause; `impossible` if trying is pointless."""

    reason: str
    impossible: bool = False


def config_obstacles(worker: Worker, setting: Callable[[str], object]) -> Iterator[Obstacle]:
    """Yield what stands against it in the server's arguments and the target model's config."""
    for flag in _IMPOSSIBLE_FLAGS:
        if setting(flag):
            yield Obstacle(f"{flag}=True", impossible=True)
    mode = setting("disaggregation_mode")
    if mode not in (None, "null"):
        yield Obstacle(f"disaggregation_mode={mode}", impossible=True)
    for flag in _UNPROVEN_FLAGS:
        if setting(flag):
            yield Obstacle(f"{flag}=True")
    for size in _UNPROVEN_SIZES:
        if setting(size) not in (None, 1):
            yield Obstacle(f"{size}={setting(size)}")
    for backend in sorted(_attention_backends(setting) - ATTENTION_BACKENDS):
        yield Obstacle(f"attention backend {backend}")
    yield from _model_obstacles(worker.target_worker.model_runner)


def cache_obstacles(worker: Worker, setting: Callable[[str], object]) -> Iterator[Obstacle]:
    """Yield what stands against it in the key-value cache, once that is made."""
    runner = worker.target_worker.model_runner
    requests = type(runner.req_to_token_pool).__name__
    if requests != "ReqToTokenPool":
        # Recurrent state is in it, which a decode step changes in place and a verify doesn't.
        yield Obstacle(f"request pool {requests}", impossible=True)
    cache = type(runner.token_to_kv_pool).__name__
    if cache not in CACHES:
        yield Obstacle(f"target key-value cache {cache}", impossible="Hybrid" in cache or "SWA" in cache)
    elif cache == "MLATokenToKVPool":
        for backend in sorted(_attention_backends(setting) - LATENT_ATTENTION_BACKENDS):
            yield Obstacle(f"latent attention (MLA) on attention backend {backend}")


def _attention_backends(setting: Callable[[str], object]) -> set[str]:
    """Return the backends of prefill and decode; each has a setting of its own above the common one."""
    common = setting("attention_backend")
    return {str(setting(f"{phase}_attention_backend") or common) for phase in ("prefill", "decode")}


def _model_obstacles(runner: Runner) -> Iterator[Obstacle]:
    config = runner.model_config
    if getattr(runner, "is_hybrid_swa", False) or getattr(runner, "sliding_window_size", None) is not None:
        yield Obstacle("a target model with sliding-window attention", impossible=True)
    if getattr(config, "is_encoder_decoder", False):
        yield Obstacle("an encoder-decoder target model", impossible=True)
    if getattr(config, "model_is_mrope", False) or getattr(config, "is_multimodal", False):
        yield Obstacle("a multimodal target model")

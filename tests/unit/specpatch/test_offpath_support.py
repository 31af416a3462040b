"""Where the decode off path is offered, refused, or tried on demand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_specpatch.runtime.offpath_support import cache_obstacles, config_obstacles

PLAIN = {"attention_backend": "triton", "disaggregation_mode": "null", "pp_size": 1}


def worker(
    cache: str = "MHATokenToKVPool", requests: str = "ReqToTokenPool", model: dict[str, bool] | None = None
) -> Any:
    """Return a worker whose target has caches of these classes."""
    runner = SimpleNamespace(
        model_config=SimpleNamespace(**(model or {})),
        token_to_kv_pool=type(cache, (), {})(),
        req_to_token_pool=type(requests, (), {})(),
    )
    return SimpleNamespace(target_worker=SimpleNamespace(model_runner=runner))


def config(settings: dict[str, object], **model: bool) -> list[tuple[str, bool]]:
    obstacles = config_obstacles(worker(model=model), {**PLAIN, **settings}.get)
    return [(obstacle.reason, obstacle.impossible) for obstacle in obstacles]


@pytest.mark.parametrize("backend", ["triton", "flashinfer", "fa3"])
def test_plain_servers_are_clear(backend: str) -> None:
    assert config({"attention_backend": backend}) == []


@pytest.mark.parametrize(
    ("settings", "reason", "impossible"),
    [
        ({"enable_dp_attention": True}, "enable_dp_attention=True", True),
        ({"disaggregation_mode": "decode"}, "disaggregation_mode=decode", True),
        ({"enable_hierarchical_cache": True}, "enable_hierarchical_cache=True", False),
        ({"dcp_size": 2}, "dcp_size=2", False),
        ({"attention_backend": "trtllm_mha"}, "attention backend trtllm_mha", False),
        ({"decode_attention_backend": "flashmla"}, "attention backend flashmla", False),
    ],
)
def test_settings_that_stand_in_the_way(settings: dict[str, object], reason: str, impossible: bool) -> None:
    assert config(settings) == [(reason, impossible)]


def test_models_that_stand_in_the_way() -> None:
    assert config({}, model_is_mrope=True) == [("a multimodal target model", False)]
    assert config({}, is_encoder_decoder=True) == [("an encoder-decoder target model", True)]


@pytest.mark.parametrize(
    ("cache", "requests", "backend", "expected"),
    [
        ("MHATokenToKVPool", "ReqToTokenPool", "fa3", []),
        ("MLATokenToKVPool", "ReqToTokenPool", "triton", []),
        ("MLATokenToKVPool", "ReqToTokenPool", "fa3", [("latent attention (MLA) on attention backend fa3", False)]),
        ("SWAKVPool", "ReqToTokenPool", "triton", [("target key-value cache SWAKVPool", True)]),
        ("DSATokenToKVPool", "ReqToTokenPool", "triton", [("target key-value cache DSATokenToKVPool", False)]),
        (
            "HybridLinearKVPool",
            "HybridReqToTokenPool",
            "triton",
            [("request pool HybridReqToTokenPool", True), ("target key-value cache HybridLinearKVPool", True)],
        ),
    ],
)
def test_caches(cache: str, requests: str, backend: str, expected: list[tuple[str, bool]]) -> None:
    settings = {**PLAIN, "attention_backend": backend}
    obstacles = cache_obstacles(worker(cache, requests), settings.get)
    assert [(obstacle.reason, obstacle.impossible) for obstacle in obstacles] == expected

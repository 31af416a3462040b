"""What the patch does with tensors: the tile of a verify in SGLang's own kernel, and a prefill's rows."""

from __future__ import annotations

from typing import Any

import pytest
from real_sglang import RELEASES, Workshop

pytestmark = [pytest.mark.engine, pytest.mark.timeout(360)]

DRIVEN = ("0.5.6", "0.5.14", "0.5.16", RELEASES[-1])
"""The oldest and the newest, and both places of the kernel."""


@pytest.fixture(params=DRIVEN)
def seen(request: pytest.FixtureRequest, workshop: Workshop) -> dict[str, dict[str, Any]]:
    def driven(tile: str) -> dict[str, Any]:
        return workshop.observe("tensor_drive.py", request.param, tile, TRITON_INTERPRET="1")

    return {tile: driven(tile) for tile in ("default", "16x128")}


def test_a_verify_is_the_same_attention_in_either_tile(seen: dict[str, dict[str, Any]]) -> None:
    default, short = seen["default"], seen["16x128"]
    assert default["verify"]["worst"] < 1e-5
    assert short["verify"]["worst"] < 1e-5
    assert default["verify"]["longest"] != short["verify"]["longest"], "another tile adds in another order"
    assert [default["before"], default["after"]] == ["default", "default"]
    assert [short["before"], short["after"]] == ["default", "16x128"]


def test_longer_extends_and_wider_heads_keep_sglangs_tile(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["default"]["tiles"] == [[64, 32], [32, 64], [64, 32]]
    assert seen["16x128"]["tiles"] == [[64, 32], [32, 64], [16, 128]]


def test_a_prefills_rows_for_the_draft_model(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["default"]["wrong rows"] == 0

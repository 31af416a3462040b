"""The tile of short extends: where it is hooked in, and when it is taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sglang_specpatch.edits import Edits
from sglang_specpatch.runtime import verify_tile
from sglang_specpatch.runtime.settings import VERIFY_TILE
from sglang_specpatch.verify_tile import KERNELS, hook_verify_tile

NEWER, OLDER = KERNELS
SOURCE = """
import triton
from sglang.srt.utils import is_cuda


def _get_block_sizes_for_extend_attention(Lq, Lv):
    return 128, 0, 128, 64, 64, 4


def extend_attention_fwd(q, k, max_len_extend, sm_scale=None):
    Lq, Lv = 128, 128
    BLOCK_DMODEL, BLOCK_DPE, BLOCK_DV, BLOCK_M, BLOCK_N, num_warps = (
        _get_block_sizes_for_extend_attention(Lq, Lv)
    )
    return launch(BLOCK_M, BLOCK_N)


def redundant_attention(q, max_len_extend):
    BLOCK_DMODEL, BLOCK_DPE, BLOCK_DV, BLOCK_M, BLOCK_N, num_warps = (
        _get_block_sizes_for_extend_attention(128, 128)
    )
"""


def patched(files: dict[str, str]) -> dict[str, str]:
    """Return the edited files by their path."""
    read = {path: text.encode() for path, text in files.items()}.get
    edits = Edits(read)
    hook_verify_tile(edits, Edits(read))
    return {member.path: member.after.decode() for member in edits.members()}


@pytest.mark.parametrize("path", [NEWER, OLDER])
def test_the_tile_is_chosen_behind_sglangs_own_choice(path: str) -> None:
    (text,) = patched({path: SOURCE}).values()
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    statements = [ast.unparse(statement) for statement in functions["extend_attention_fwd"].body]
    assert statements[2] == "BLOCK_M, BLOCK_N = specpatch.extend_tile(max_len_extend, Lq, BLOCK_M, BLOCK_N)"
    assert statements[3] == "return launch(BLOCK_M, BLOCK_N)"
    assert text.count("specpatch.") == 1


@pytest.mark.parametrize(
    "files",
    [
        {},
        {NEWER: SOURCE.replace("max_len_extend", "longest")},
        {NEWER: SOURCE.replace("extend_attention_fwd", "extend_attention")},
        {NEWER: SOURCE.replace("_get_block_sizes_for_extend_attention(", "_sizes(")},
        {
            NEWER: SOURCE.replace(
                "    return launch", "    BLOCK_M = _get_block_sizes_for_extend_attention()\n    return x"
            )
        },
    ],
)
def test_where_there_is_no_place_for_it_nothing_is_changed(files: dict[str, str]) -> None:
    assert patched(files) == {}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The setting of a server, which is read once."""
    config = SimpleNamespace(value="16x128", reads=0)

    def reader(name: str) -> object:
        assert name == VERIFY_TILE
        config.reads += 1
        if config.value is None:
            raise ValueError("no server")
        return lambda: config.value

    monkeypatch.setattr(verify_tile, "setting_reader", reader)
    yield config
    verify_tile._chosen.cache_clear()
    verify_tile._note_use.cache_clear()


def test_a_verify_gets_it_and_the_server_says_so(chosen: SimpleNamespace) -> None:
    assert verify_tile.in_use() == "default"
    assert [verify_tile.extend_tile(tokens, 128, 128, 64) for tokens in (1, 4, 16)] == [(16, 128)] * 3
    assert verify_tile.in_use() == "16x128"
    assert chosen.reads == 1


@pytest.mark.parametrize(("tokens", "head_size"), [(17, 128), (4, 192), (4, 576)])
def test_longer_extends_and_wider_heads_keep_sglangs_tile(chosen: SimpleNamespace, tokens: int, head_size: int) -> None:
    assert verify_tile.extend_tile(tokens, head_size, 32, 64) == (32, 64)
    assert verify_tile.in_use() == "default"
    assert chosen.reads == 0


@pytest.mark.parametrize("value", ["default", None])
def test_unless_it_is_chosen_or_where_there_is_no_server_sglangs_tile_stays(
    chosen: SimpleNamespace, value: str | None
) -> None:
    chosen.value = value
    assert verify_tile.extend_tile(4, 128, 128, 64) == (128, 64)
    assert verify_tile.in_use() == "default"

"""The slots reserved for a decode step follow the longest mode, whatever SGLang itself looks at."""

from __future__ import annotations

import textwrap

import pytest

from sglang_specpatch.anchors import AnchorMissing
from sglang_specpatch.edits import Edits
from sglang_specpatch.reservation import CONTEXT, SIZING, hook_reservation
from sglang_specpatch.runtime import reservation

BY_MODE = """
    def max_speculative_num_draft_tokens():
        spec = get_spec()
        if not spec.speculative_adaptive:
            return spec.speculative_num_draft_tokens
        return _adaptive_draft_token_bound(spec.speculative_adaptive_config)
"""
BY_LARGEST_MODE = """
    def max_speculative_num_draft_tokens():
        spec = get_spec()
        return max(spec.speculative_num_draft_tokens, spec.max_speculative_num_draft_tokens)
"""
RESERVE = """
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens


    def get_alloc_len_per_decode():
        spec = get_spec()
        spec_steps = spec.speculative_num_steps or 1
        spec_tokens = max_speculative_num_draft_tokens()
        return max(spec_steps, spec_tokens)
"""


def hooked(context: str | None, sizing: str = RESERVE) -> str | None:
    """The patched file, or None where nothing was to be hooked."""
    files = {SIZING: textwrap.dedent(sizing).encode()}
    if context is not None:
        files[CONTEXT] = textwrap.dedent(context).encode()
    edits = Edits(files.get)
    hook_reservation(edits, files.get)
    members = {member.path: member.after.decode() for member in edits.members()}
    assert set(members) <= {SIZING}
    return members.get(SIZING)


def test_a_release_that_reserves_for_the_mode_in_force_reserves_for_the_longest() -> None:
    patched = hooked(BY_MODE)
    assert patched is not None
    assert (
        "    spec_tokens = specpatch.most_draft_tokens(spec_tokens)\n    return max(spec_steps, spec_tokens)" in patched
    )


@pytest.mark.parametrize("context", [None, "def other(): ...", BY_LARGEST_MODE])
def test_other_releases_are_left_alone(context: str | None) -> None:
    assert hooked(context) is None


def test_a_release_that_reserves_elsewhere_is_refused() -> None:
    with pytest.raises(AnchorMissing, match=r"allocation_sizing\.py: get_alloc_len_per_decode"):
        hooked(BY_MODE, RESERVE.replace("def get_alloc_len_per_decode", "def other"))


def test_a_step_without_drafts_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "_seen", [0])
    assert [reservation.most_draft_tokens(tokens) for tokens in (4, 1, 1, 6, 1)] == [4, 4, 4, 6, 6]

"""Multi-head latent attention, as DeepSeek's models have it: one cached row for all heads, another forward path."""

from __future__ import annotations

import pytest
from cpu_engine import CpuEngine, acceptance, scenes
from cpu_engine.compare import same
from real_sglang import RELEASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

NEWEST = RELEASES[-1]


def test_drafting_on_off_and_toggled() -> None:
    checked = {"SGLANG_SPECPATCH_CHECK_LENGTHS": "1"}
    with CpuEngine(NEWEST, latent=True, variables=checked).starting() as engine:
        with CpuEngine(NEWEST, latent=True, speculating=False) as plain:
            expected = plain.generate(scenes.MANY)
        engine.wait()
        assert engine.internal_states()[0]["specpatch"]["off_path"] == "Decode"
        engine.set_threshold(0)
        drafted = engine.generate(scenes.MANY)
        engine.set_threshold(1)
        decoded = engine.generate(scenes.MANY)
        with engine.toggled():
            toggled = engine.generate(scenes.MANY)
    for answers in (drafted, decoded, toggled):
        same(answers, expected)
    assert acceptance(drafted) > 1.5
    assert acceptance(decoded) == 1.0
    assert 1.0 < acceptance(toggled) < acceptance(drafted)

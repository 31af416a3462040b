"""Multi-head latent attention, as DeepSeek's models have it: one cached row for all heads, another forward path."""

from __future__ import annotations

import pytest
from cpu_engine import CpuEngine, acceptance, plan
from cpu_engine.compare import Reference
from real_sglang import RELEASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.mark.parametrize("release", plan.newest_of_this_run(RELEASES))
def test_drafting_on_off_toggled_and_crossed(release: str) -> None:
    with CpuEngine(release, latent=True).starting() as engine:
        with CpuEngine(release, latent=True, speculating=False) as plain:
            expected = Reference.of(plain)
        engine.wait()
        assert engine.internal_states()[0]["specpatch"]["off_path"] == "Decode"
        engine.set_threshold(0)
        drafted = expected.compare(engine)
        engine.set_threshold(1)
        decoded = expected.compare(engine)
        with engine.toggled():
            toggled = expected.compare(engine)
        engine.set_threshold(5)
        expected.compare(engine)
    assert acceptance(drafted) > 1.5
    assert acceptance(decoded) == 1.0
    assert 1.0 < acceptance(toggled) < acceptance(drafted)

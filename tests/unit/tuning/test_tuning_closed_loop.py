"""The tuner in closed loop against measured and made-up engines: where it settles, how calmly, and at what cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from closed_loop import Loop, SteadyEngine
from evidence import auto

from sglang_operator.api.v1alpha1 import ThresholdSource
from sglang_operator.simulate.curves.curve import Mode as EngineMode
from sglang_operator.simulate.curves.families import curve_by_name, curve_names
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.policy import Outcome

SETTLING_SECONDS = 120
HOUR = 3600
CLOSE = 0.979
"""Of the better mode's rate: a change must gain 2 %."""


def steady(batch: int) -> Callable[[float], int]:
    return lambda _: batch


def steps(*batches: int, each_seconds: float) -> Callable[[float], int]:
    return lambda now: batches[min(int(now / each_seconds), len(batches) - 1)]


def chosen_rate(engine: SteadyEngine, batch: int) -> float:
    """The rate of the mode that the threshold chooses, as a part of the better one's."""
    on, off = (engine.curve.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
    drafting = engine.threshold == 0 or batch < engine.threshold
    return (on if drafting else off) / max(on, off)


BATCH_AND_START = [(1, 256), (8, 1), (24, 256), (32, 32), (31, 32), (40, 1), (64, 256), (200, 1)]


@pytest.mark.parametrize(("batch", "start"), BATCH_AND_START)
@pytest.mark.parametrize("curve", curve_names())
def test_at_constant_load_the_better_mode_is_found_and_kept(curve: str, batch: int, start: int) -> None:
    """Within two minutes unless they differ by little: the less, and the fewer requests, the longer it takes."""
    engine = SteadyEngine(curve_by_name(curve), steady(batch))
    loop = Loop(engine, auto(start))
    loop.run_until(SETTLING_SECONDS)
    assert chosen_rate(engine, batch) >= 0.92
    loop.run_until(600)
    assert chosen_rate(engine, batch) >= CLOSE
    assert len(loop.moves) <= 2, "two moves an hour at constant load, with the first ones"


@pytest.mark.parametrize("curve", ["founding", "mid", "strong-draft", "never-helps", "always-helps", "two-crossings"])
@pytest.mark.parametrize("batch", [4, 24, 64, 200])
def test_what_probes_and_settling_cost_at_constant_load(curve: str, batch: int) -> None:
    engine = SteadyEngine(curve_by_name(curve), steady(batch))
    loop = Loop(engine, auto())
    loop.run_until(SETTLING_SECONDS)
    settled, best = engine.tokens, engine.best_tokens
    lost = engine.lost_by_probes
    loop.run_until(HOUR)
    assert engine.tokens - settled >= 0.99 * (engine.best_tokens - best)
    assert engine.lost_by_probes - lost <= 0.005 * (engine.best_tokens - best)
    assert loop.decision.probe_permille > 0, "probes never end, or a drift would go unseen"


@pytest.mark.parametrize("batch", [1, 8, 31, 64, 200])
def test_where_drafting_never_helps_less_than_one_percent_is_lost(batch: int) -> None:
    engine = SteadyEngine(curve_by_name("never-helps"), steady(batch))
    loop = Loop(engine, auto())
    loop.run_until(SETTLING_SECONDS)
    tokens, best = engine.tokens, engine.best_tokens
    loop.run_until(1800)
    assert engine.tokens - tokens >= 0.99 * (engine.best_tokens - best)


def test_the_load_rises_and_falls_and_the_threshold_follows() -> None:
    """Drafting helps up to 45 requests. From 8 requests to 64 and back, from a threshold that fits neither."""
    engine = SteadyEngine(curve_by_name("mid"), steps(8, 64, 8, each_seconds=300))
    loop = Loop(engine, auto(256))
    loop.run_until(300)
    assert engine.threshold > 8
    loop.run_until(600)
    assert 8 < engine.threshold <= 64
    loop.run_until(900)
    assert engine.threshold > 8


@pytest.mark.parametrize("curve", ["always-helps", "fa3"])
def test_a_rising_load_never_overtakes_the_threshold(curve: str) -> None:
    """Drafting is better all the way from 8 to 200 requests, in half an hour, and the threshold stays ahead."""
    engine = SteadyEngine(curve_by_name(curve), lambda now: round(8 * 25 ** (now / 1800)))
    loop = Loop(engine, auto(16))
    loop.run_until(300)
    for minute in range(6, 31):
        loop.run_until(60 * minute)
        assert engine.threshold > engine.batch_at(loop.now), minute
    assert len(loop.moves) <= loop.limits.moves_an_hour


def test_a_load_that_has_been_everywhere_is_never_met_by_surprise() -> None:
    """Once both sides were seen, the threshold stands near the crossing (45.5), and steps of the load move nothing."""
    engine = SteadyEngine(curve_by_name("mid"), steps(16, 32, 48, 64, 16, 64, 16, 64, each_seconds=200))
    loop = Loop(engine, auto(256))
    loop.run_until(1000)
    assert 40 <= engine.threshold <= 51
    known = len(loop.moves)
    loop.run_until(1600)
    assert len(loop.moves) == known


@pytest.mark.parametrize("scrape_seconds", [5, 15, 30])
def test_a_drift_of_the_crossover_is_followed_both_ways(scrape_seconds: float) -> None:
    """At 64 requests: drafting loses, then (better acceptance) wins, then loses again, known within 2.5 minutes."""
    slow, fast = curve_by_name("mid"), curve_by_name("strong-draft")
    engine = SteadyEngine(slow, steady(64))
    loop = Loop(engine, auto(), scrape_seconds=scrape_seconds, tick_seconds=max(10, scrape_seconds))
    for phase, curve in enumerate((slow, fast, slow)):
        engine.curve = curve
        loop.run_until(phase * 1200 + 150)
        assert (engine.threshold > 64) is (curve is fast), phase
        loop.run_until((phase + 1) * 1200)
        assert (engine.threshold > 64) is (curve is fast), phase


@pytest.mark.parametrize("curve", ["mid", "never-helps", "always-helps"])
@pytest.mark.parametrize("outage", [(0, 400), (40, 400), (200, 1500)])
def test_nothing_moves_on_stale_numbers(curve: str, outage: tuple[float, float]) -> None:
    """While the scraper is down, and for as long as its last sample is too old, nothing moves and nothing is probed."""
    engine = SteadyEngine(curve_by_name(curve), steps(8, 64, 8, 64, each_seconds=100))
    loop = Loop(engine, auto(), scraping=lambda now: not outage[0] < now < outage[1])
    loop.run_until(1700)
    stale = [verdict for at, verdict in loop.verdicts if outage[0] + loop.max_age_seconds < at < outage[1]]
    assert stale
    assert {verdict.outcome for verdict in stale} == {Outcome.NO_FRESH_EVIDENCE}
    assert {verdict.decision.probe_permille for verdict in stale} == {0}
    assert chosen_rate(engine, 64) >= CLOSE, "afterwards it works again"


@pytest.mark.parametrize(
    "batch_at",
    [
        steps(*range(1, 200, 7), each_seconds=60),
        lambda now: 8 if now % 40 < 20 else 120,
        lambda now: int(1 + 63 * abs((now / 300) % 2 - 1)),
        lambda now: 0 if now % 120 < 60 else 30,
    ],
    ids=["rising", "bursts", "ramps", "pauses"],
)
@pytest.mark.parametrize("curve", ["founding", "mid", "two-crossings", "graph-steps"])
def test_bounds_dwell_and_the_number_of_moves_under_changing_load(curve: str, batch_at: Callable[[float], int]) -> None:
    limits = Limits()
    loop = Loop(SteadyEngine(curve_by_name(curve), batch_at), auto(low=3, high=150), limits)
    loop.run_until(HOUR / 2)
    moments = [at for at, _ in loop.moves]
    assert all(3 <= decision.batch_size <= 150 for _, decision in loop.moves)
    assert len(moments) <= limits.moves_an_hour
    close = [
        later - earlier for earlier, later in itertools.pairwise(moments) if later - earlier < limits.dwell_seconds
    ]
    assert not close, "the dwell time is for all but emergencies, of which there is none here"


@pytest.mark.parametrize("start", [1, 32, 256])
def test_a_load_that_is_spread_over_all_batch_sizes(start: int) -> None:
    """No bucket holds more than an eighth of the time; drafting helps up to 45."""
    engine = SteadyEngine(curve_by_name("mid"), lambda now: 1 + int(now) * 7 % 128)
    Loop(engine, auto(start)).run_until(600)
    assert 32 <= engine.threshold <= 51, "between them nothing gains 2 % at this load"


def test_one_sided_load_for_an_hour_then_the_other_side() -> None:
    """Nothing but 8 requests for an hour teaches nothing about 100; the first minutes there do."""
    engine = SteadyEngine(curve_by_name("triton-decode"), steps(8, 100, each_seconds=HOUR))
    loop = Loop(engine, auto(256))
    loop.run_until(HOUR + SETTLING_SECONDS)
    assert engine.threshold <= 100


def test_a_restart_of_the_operator_changes_nothing() -> None:
    engine = SteadyEngine(curve_by_name("mid"), steady(64))
    loop = Loop(engine, auto(256))
    loop.run_until(300)
    before = loop.decision
    for moment in (310, 320, 600):
        loop.restart_operator()
        loop.run_until(moment)
    assert (loop.decision.batch_size, loop.decision.decided_at) == (before.batch_size, before.decided_at)


def test_a_restart_of_the_server_changes_nothing() -> None:
    engine = SteadyEngine(curve_by_name("mid"), steady(64))
    loop = Loop(engine, auto(256))
    loop.run_until(300)
    before = loop.decision
    engine.restart()
    loop.run_until(900)
    assert (loop.decision.batch_size, loop.decision.decided_at) == (before.batch_size, before.decided_at)


def test_a_queue_ends_probing_once_the_modes_were_compared() -> None:
    engine = SteadyEngine(curve_by_name("mid"), steady(200), queued=9)
    loop = Loop(engine, auto(256))
    loop.run_until(SETTLING_SECONDS)
    assert engine.threshold <= 200, "a queue doesn't keep the worse mode in force"
    assert loop.decision.probe_permille == 0
    lost = engine.lost_by_probes
    loop.run_until(600)
    assert engine.lost_by_probes == lost


def test_a_measured_threshold_says_so() -> None:
    engine = SteadyEngine(curve_by_name("founding"), steady(24))
    loop = Loop(engine, auto())
    loop.run_until(SETTLING_SECONDS)
    assert loop.decision.source is ThresholdSource.MEASURED
    assert loop.decision.evidence is not None
    assert loop.decision.evidence.batch_sizes == "17-24"
    assert loop.decision.evidence.not_drafting_tokens_per_second > loop.decision.evidence.drafting_tokens_per_second

"""The tuner in closed loop against measured and made-up engines: where it settles, how calmly, and at what cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from closed_loop import Loop, SteadyEngine, SteppedEngine
from evidence import auto

from engine_sim.curve_families import curve_by_name, curve_names
from engine_sim.curves import Mode as EngineMode
from sglang_operator.api.v1alpha1 import ThresholdSource
from sglang_operator.tuning.exploration import CREDIT_IN_TRIALS
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.policy import Hold, HoldReason

SETTLING_SECONDS = 60
HOUR = 3600


def steady(batch: int) -> Callable[[float], int]:
    return lambda _: batch


def steps(*batches: int, each_seconds: float) -> Callable[[float], int]:
    return lambda now: batches[min(int(now / each_seconds), len(batches) - 1)]


BATCH_AND_START = [(1, 256), (8, 1), (8, 8), (24, 256), (32, 32), (31, 32), (40, 1), (64, 256), (200, 1), (200, 200)]


@pytest.mark.parametrize(("batch", "start"), BATCH_AND_START)
@pytest.mark.parametrize("curve", curve_names())
def test_at_constant_load_the_better_mode_is_found_and_kept(curve: str, batch: int, start: int) -> None:
    """After the first trial the server runs in the better mode, unless the modes differ by less than a change is worth.

    From then on only trials change the threshold, one an interval.
    """
    engine = SteadyEngine(curve_by_name(curve), steady(batch))
    loop = Loop(engine, auto(start))
    loop.run_until(2 * SETTLING_SECONDS)
    on, off = (engine.curve.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF))
    drafting = batch < engine.threshold
    assert (on if drafting else off) >= 0.979 * max(on, off)
    settled = engine.threshold
    loop.run_until(HOUR)
    later = [decision for at, decision in loop.moves if at > 2 * SETTLING_SECONDS]
    assert len(later) <= 4
    assert all(decision.source is not ThresholdSource.MEASURED or decision.batch_size == settled for decision in later)
    assert engine.threshold == settled


@pytest.mark.parametrize("curve", ["founding", "mid", "strong-draft", "never-helps", "always-helps", "two-crossings"])
def test_the_cost_of_an_hour_at_constant_load(curve: str) -> None:
    """Settling and trials together cost under 2.5 % of what the better mode would have made."""
    for batch in (4, 24, 64, 200):
        engine = SteadyEngine(curve_by_name(curve), steady(batch))
        Loop(engine, auto()).run_until(HOUR)
        assert engine.tokens >= 0.975 * engine.best_tokens, (curve, batch)


def test_the_load_rises_and_falls_and_the_threshold_follows() -> None:
    """Drafting helps up to 45 requests. From 8 requests to 64 and back: off at 64, and on again at 8."""
    engine = SteadyEngine(curve_by_name("mid"), steps(8, 64, 8, each_seconds=600))
    loop = Loop(engine, auto(256))
    loop.run_until(600)
    assert engine.threshold > 8
    loop.run_until(1200)
    assert engine.threshold <= 64
    loop.run_until(1800)
    assert engine.threshold > 8
    assert [decision.source for _, decision in loop.moves if decision.source is ThresholdSource.MEASURED]


def test_a_drift_of_the_crossover_is_found_both_ways() -> None:
    """At 64 requests: drafting loses, then (better acceptance) wins, then loses again. No value is for ever."""
    slow, fast = curve_by_name("mid"), curve_by_name("strong-draft")
    engine = SteadyEngine(slow, steady(64))
    loop = Loop(engine, auto())
    seen = []
    for phase, curve in enumerate((slow, fast, slow), start=1):
        engine.curve = curve
        loop.run_until(phase * 2 * HOUR)
        seen.append(engine.threshold > 64)
    assert seen == [False, True, False]


@pytest.mark.parametrize("curve", ["mid", "never-helps", "always-helps"])
@pytest.mark.parametrize("outage", [(0, 400), (40, 400), (200, 1500)])
def test_nothing_moves_on_stale_numbers(curve: str, outage: tuple[float, float]) -> None:
    """While the scraper is down, and for as long as its last sample is too old, only a running trial ends."""
    engine = SteadyEngine(curve_by_name(curve), steps(8, 64, 8, 64, each_seconds=100))
    loop = Loop(engine, auto(), scraping=lambda now: not outage[0] < now < outage[1])
    loop.run_until(2000)
    stale = [(at, verdict) for at, verdict in loop.verdicts if outage[0] + loop.max_age_seconds < at < outage[1]]
    moves = [decision for at, decision in loop.moves if outage[0] + loop.max_age_seconds < at < outage[1]]
    assert stale
    assert len(moves) <= 1
    assert all("Back from a trial" in decision.message for decision in moves)
    reasons = {verdict.reason for _, verdict in stale if isinstance(verdict, Hold)}
    assert reasons <= {HoldReason.NO_FRESH_EVIDENCE, HoldReason.TRIAL}
    # Afterwards it works again: 64 requests run in the better mode.
    assert (engine.threshold > 64) is (engine.curve.better(64) is EngineMode.ON)


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
def test_bounds_dwell_and_the_share_of_trials_under_changing_load(curve: str, batch_at: Callable[[float], int]) -> None:
    limits = Limits(exploration_interval_seconds=120)
    engine = SteadyEngine(curve_by_name(curve), batch_at)
    loop = Loop(engine, auto(low=3, high=150), limits)
    loop.run_until(2 * HOUR)
    moments = [at for at, _ in loop.moves]
    assert all(3 <= decision.batch_size <= 150 for _, decision in loop.moves)
    assert all(later - earlier >= limits.dwell_seconds for earlier, later in itertools.pairwise(moments))
    assert loop.moves

    trials = [
        (at, min([other for other in moments if other > at], default=loop.now))
        for at, decision in loop.moves
        if decision.source is ThresholdSource.EXPLORATION
    ]
    for start in (0.0, HOUR / 2, HOUR):
        for length in (600, HOUR):
            spent = sum(max(0.0, min(end, start + length) - max(begin, start)) for begin, end in trials)
            burst = CREDIT_IN_TRIALS * limits.longest_trial_seconds
            assert spent <= limits.exploration_share * length + burst + loop.tick_seconds


@pytest.mark.parametrize("start", [1, 32, 256])
def test_a_load_that_is_spread_over_all_batch_sizes(start: int) -> None:
    """No bucket holds more than an eighth of the time; drafting helps up to 45."""
    engine = SteadyEngine(curve_by_name("mid"), lambda now: 1 + int(now) * 7 % 128)
    Loop(engine, auto(start)).run_until(HOUR)
    assert 32 <= engine.threshold <= 65


def test_one_sided_load_for_an_hour_then_the_other_side() -> None:
    """Nothing but 8 requests for an hour teaches nothing about 100; the first minutes there do."""
    engine = SteadyEngine(curve_by_name("triton-decode"), steps(8, 100, each_seconds=HOUR))
    loop = Loop(engine, auto(256))
    loop.run_until(HOUR + 3 * SETTLING_SECONDS)
    assert engine.threshold <= 97


@pytest.mark.parametrize(
    ("curve", "clients", "drafts"),
    [
        ("triton-decode", 8, True),
        ("triton-decode", 48, False),
        ("flashinfer-decode", 40, True),
        ("founding", 16, False),
    ],
)
def test_with_the_simulated_engine_s_own_scheduler(curve: str, clients: int, drafts: bool) -> None:
    """Real steps: acceptance drawn at random, prefills between, batches that shrink and grow within the bucket."""
    engine = SteppedEngine(curve_by_name(curve), clients)
    loop = Loop(engine, auto())
    loop.run_until(100)
    assert (clients < engine.threshold) is drafts, [(at, d.message) for at, d in loop.moves]
    assert loop.previous.source in (ThresholdSource.MEASURED, ThresholdSource.SPEC)


def test_the_load_of_the_demo_on_the_simulated_engine() -> None:
    """4 clients, 64 clients, 4 clients, with drafting worth its cost up to 45: the threshold follows in two minutes."""
    engine = SteppedEngine(curve_by_name("mid"), 4)
    loop = Loop(engine, auto(256), recent_seconds=20, window_seconds=300)
    loop.run_until(120)
    assert engine.threshold > 4
    engine.set_clients(64)
    loop.run_until(240)
    assert engine.threshold <= 64
    engine.set_clients(4)
    loop.run_until(420)
    assert engine.threshold > 4

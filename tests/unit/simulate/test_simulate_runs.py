"""Whole runs of the simulator: what the baselines lose by construction, and every decision of the tuner."""

from __future__ import annotations

import itertools

import pytest
from evidence import auto

from sglang_operator.api.v1alpha1 import ThresholdSource
from sglang_operator.simulate.curves.families import curve_by_name
from sglang_operator.simulate.policies import ORACLE, parse_policy
from sglang_operator.simulate.run import Result, run
from sglang_operator.simulate.workloads import workload
from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.policy import Outcome

SCRAPE_AGE_SECONDS = 60


def moves(result: Result) -> list[tuple[float, int]]:
    return [(each.at, each.verdict.decision.batch_size) for each in result.decided if each.moved]


def test_the_same_seed_is_the_same_run_and_another_seed_is_not() -> None:
    one, again, other = (run(curve_by_name("founding"), workload("W1"), seed=seed) for seed in (3, 3, 4))
    assert one == again
    assert one.figures.output_tokens != other.figures.output_tokens


@pytest.mark.parametrize(("curve", "right", "wrong"), [("never-helps", "off", "on"), ("always-helps", "on", "off")])
def test_regret_is_nothing_for_who_is_always_right(curve: str, right: str, wrong: str) -> None:
    regrets = {
        name: run(curve_by_name(curve), workload("W1"), parse_policy(name)).figures.whole_regret_percent
        for name in (right, wrong, "oracle")
    }
    assert regrets[right] == regrets["oracle"] == 0
    assert regrets[wrong] > 5


@pytest.mark.parametrize(
    ("curve", "name"),
    [("founding", "W1"), ("mid", "W2"), ("fa3", "W3"), ("mid", "W5")],
)
def test_little_is_lost_after_settling_and_few_moves_are_made(curve: str, name: str) -> None:
    result = run(curve_by_name(curve), workload(name))
    oracle = run(curve_by_name(curve), workload(name), ORACLE)
    figures = result.figures
    assert figures.regret_percent <= 1
    assert figures.whole_regret_percent <= 2
    assert figures.probe_percent <= 0.5
    assert figures.worst_batch_loss_percent is not None
    assert figures.worst_batch_loss_percent <= 5
    assert figures.output_tokens >= 0.95 * oracle.figures.output_tokens, "a check that counts no decode time"
    made = moves(result)
    assert len(made) <= DEFAULTS.moves_an_hour
    assert all(later - earlier >= 30 for (earlier, _), (later, _) in itertools.pairwise(made))
    to_and_fro = [b for (_, a), (_, b), (_, c) in zip(made, made[1:], made[2:], strict=False) if a == c != b]
    assert not to_and_fro or name == "W5", "only where the crossover itself goes to and fro"


@pytest.mark.parametrize("curve", ["founding", "always-helps"])
def test_no_threshold_ever_leaves_its_bounds(curve: str) -> None:
    result = run(curve_by_name(curve), workload("W2"), spec=auto(low=6, high=24))
    assert {24, 6} & {threshold for _, threshold in result.thresholds}
    assert all(6 <= threshold <= 24 for _, threshold in result.thresholds)


def test_off_finds_its_way_back_to_on() -> None:
    """From a threshold that never drafts, under load on one side only; and after acceptance fell and rose again."""
    result = run(curve_by_name("always-helps"), workload("W8"), spec=auto(1))
    assert moves(result)[0][0] <= 150
    assert result.thresholds[-1][1] > 96
    drifts = run(curve_by_name("mid"), workload("W5"))
    at = dict(drifts.thresholds)
    assert [at[second] > 32 for second in (700, 1400, 2100, 2800)] == [True, False, True, True]


def test_faults_never_become_decisions() -> None:
    """While scrapes are lost or the series carry another pod's name, once the last sample is old: nothing moves."""
    faults = workload("W9").faults
    result = run(curve_by_name("mid"), workload("W9"))
    blind = [
        each
        for begin, end in (*faults.scrapes_lost, *faults.relabelled)
        for each in result.decided
        if begin + SCRAPE_AGE_SECONDS + 20 <= each.at < end
    ]
    assert len(blind) > 20
    assert {each.verdict.outcome for each in blind} == {Outcome.NO_FRESH_EVIDENCE}
    assert not any(each.verdict.decision.probe_permille for each in blind)
    measured = [each for each in result.decided if each.moved]
    assert all(each.verdict.decision.source is ThresholdSource.MEASURED for each in measured)
    assert result.figures.regret_percent <= 2
    for begin, end in faults.updates_refused:
        inside = {threshold for at, threshold in result.thresholds if begin + 5 < at < end}
        assert len(inside) == 1, "a server that refuses keeps its value"

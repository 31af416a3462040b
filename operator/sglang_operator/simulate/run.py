"""One run: a server, its requests, a scraper and whoever steers, on one clock that jumps from event to event.

A run is the same each time for the same curve, workload, policy, seed and settings. Requests and the pace of the
machine depend on the seed alone, not on the policy, so that policies are compared on the same load.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.settings import Settings
from sglang_operator.simulate.costs import Costs
from sglang_operator.simulate.curves.curve import Curve
from sglang_operator.simulate.engine import Engine
from sglang_operator.simulate.figures import Figures, figures
from sglang_operator.simulate.ledger import Ledger, Mark
from sglang_operator.simulate.operators import Bandit, Decided, Nobody, Operator, Tuner
from sglang_operator.simulate.policies import AUTO, Kind, Policy
from sglang_operator.simulate.scraper import POD, Scraper
from sglang_operator.simulate.steering import Adaptive, Oracle, Steering
from sglang_operator.simulate.workloads import Window, Workload
from sglang_operator.tuning.limits import DEFAULTS, Limits

INTERVAL_SECONDS = Settings().tuning_interval_seconds
MARK_SECONDS = 5
SETTLING_SECONDS = 120
SETTLING_SCRAPES = 5
DOWN_SECONDS = 45
"""How long a server is away when it restarts."""
TICK_PHASE_SECONDS = 3.7
PACE_SPREAD, PACE_SECONDS = 0.01, 60
"""Neighbours and clocks stretch all step times: standard deviation, and time over which that is forgotten."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one run did."""

    curve: str
    workload: str
    policy: Policy
    seed: int
    seconds: float
    figures: Figures
    marks: tuple[Mark, ...]
    thresholds: tuple[tuple[float, int], ...]
    """Second and threshold in force in the server, one a mark."""
    decided: tuple[Decided, ...] = ()
    """Every verdict of the operator's tuner, also those that hold."""


def run(
    curve: Curve,
    workload: Workload,
    policy: Policy = AUTO,
    *,
    seed: int = 0,
    spec: DisableThreshold | None = None,
    limits: Limits = DEFAULTS,
) -> Result:
    """Run a workload under a policy. `spec` and `limits` are those of the operator's tuner."""
    return _Run(curve, workload, policy, seed, spec or DisableThreshold(), limits).result()


def settling_seconds(workload: Workload) -> float:
    """Time in which a tuner must have settled: two minutes, or five scrapes where those take longer."""
    return max(SETTLING_SECONDS, SETTLING_SCRAPES * workload.scrape_seconds)


class _Kind(IntEnum):
    """Events, in the order in which they are taken at the same moment."""

    DRIFT = 0
    SERVER_RESTART = 1
    OPERATOR_RESTART = 2
    MARK = 3
    SCRAPE = 4
    TICK = 5


class _Run:
    def __init__(
        self, curve: Curve, workload: Workload, policy: Policy, seed: int, spec: DisableThreshold, limits: Limits
    ) -> None:
        self.curve, self.workload, self.policy, self.seed = curve, workload, policy, seed
        self.scraper = Scraper()
        self.operator = self._operator(spec, limits)
        costs = Costs(curve)
        self.engine = Engine(
            costs,
            workload.prompts.factors,
            workload.source(costs, seed),
            self._steering(),
            Ledger(settling_seconds(workload)),
            seed,
        )
        self.thresholds: list[tuple[float, int]] = []
        self._paces = _paces(workload.seconds, seed)

    def _operator(self, spec: DisableThreshold, limits: Limits) -> Operator:
        if self.policy.kind is Kind.AUTO:
            refused = self.workload.faults.updates_refused
            return Tuner(spec, limits, self.scraper, self.seed, refused=lambda now: _within(now, refused))
        return Bandit(self.seed) if self.policy.kind is Kind.BANDIT else Nobody(self.policy.batch_size)

    def _steering(self) -> Steering:
        if self.policy.kind is Kind.ORACLE:
            return Oracle()
        return Adaptive(self.seed) if self.policy.kind is Kind.ADAPTIVE else self.operator.threshold

    def result(self) -> Result:
        """Let everything happen, and sum it up."""
        for at, kind in sorted(_events(self.workload, self.seed)):
            self._run_until(at)
            self._happen(at, kind)
        tuner = self.operator if isinstance(self.operator, Tuner) else None
        ledger = self.engine.ledger
        return Result(
            curve=self.curve.name,
            workload=self.workload.name,
            policy=self.policy,
            seed=self.seed,
            seconds=self.workload.seconds,
            figures=figures(ledger, self.thresholds, by_threshold=self.policy.has_threshold),
            marks=tuple(ledger.marks),
            thresholds=tuple(self.thresholds),
            decided=tuple(tuner.decided) if tuner else (),
        )

    def _run_until(self, at: float) -> None:
        """Run the server, with an update that reaches it on the way."""
        if isinstance(self.operator, Tuner) and self.operator.update_at <= at:
            update_at = self.operator.update_at
            self.engine.run_until(update_at)
            self.operator.update(update_at)
        self.engine.run_until(at)

    def _happen(self, at: float, kind: _Kind) -> None:
        match kind:
            case _Kind.DRIFT:
                self.engine.ledger.drift()
            case _Kind.SERVER_RESTART:
                self.engine.restart(DOWN_SECONDS)
                if isinstance(self.operator, Tuner):
                    self.operator.server_restarted()
            case _Kind.OPERATOR_RESTART:
                if isinstance(self.operator, Tuner):
                    self.operator.operator_restarted()
            case _Kind.MARK:
                self.engine.ledger.mark(at)
                self.thresholds.append((at, self.operator.threshold.batch_size))
                self.engine.pace = self._paces[int(at / MARK_SECONDS)]
            case _Kind.SCRAPE:
                self._scrape(at)
            case _Kind.TICK:
                self.operator.tick(at)

    def _scrape(self, at: float) -> None:
        faults = self.workload.faults
        down = any(begin <= at < begin + DOWN_SECONDS for begin in faults.server_restarts)
        if down or _within(at, faults.scrapes_lost):
            return
        self.scraper.pod = f"{POD}-renamed" if _within(at, faults.relabelled) else POD
        engine = self.engine
        self.scraper.scrape(at, engine.counting.read(), running=engine.running, queued=engine.queued)
        self.operator.scraped(at, self.engine.ledger.output_tokens)


def _within(at: float, windows: Iterable[Window]) -> bool:
    return any(begin <= at < end for begin, end in windows)


def _events(workload: Workload, seed: int) -> list[tuple[float, _Kind]]:
    draws = random.Random(f"scrapes {seed}")
    seconds, period = workload.seconds, workload.scrape_seconds
    phase, jitter = draws.random() * period, workload.scrape_jitter * period
    scrapes = [phase + index * period + draws.uniform(-jitter, jitter) for index in range(int(seconds / period))]
    ticks = [TICK_PHASE_SECONDS + index * INTERVAL_SECONDS for index in range(int(seconds / INTERVAL_SECONDS))]
    marks = range(0, int(seconds) + 1, MARK_SECONDS)
    return [
        *((at, _Kind.DRIFT) for at in workload.drifts),
        *((at, _Kind.SERVER_RESTART) for at in workload.faults.server_restarts),
        *((at, _Kind.OPERATOR_RESTART) for at in workload.faults.operator_restarts),
        *((float(at), _Kind.MARK) for at in marks),
        *((max(0.0, at), _Kind.SCRAPE) for at in scrapes),
        *((at, _Kind.TICK) for at in ticks),
    ]


def _paces(seconds: float, seed: int) -> list[float]:
    """A pace for each mark: a first-order autoregressive walk around 1."""
    draws = random.Random(f"pace {seed}")
    kept = 1 - MARK_SECONDS / PACE_SECONDS
    fresh = PACE_SPREAD * (1 - kept * kept) ** 0.5
    deviation, paces = 0.0, []
    for _ in range(int(seconds / MARK_SECONDS) + 1):
        deviation = kept * deviation + fresh * draws.gauss(0, 1)
        paces.append(1 + deviation)
    return paces

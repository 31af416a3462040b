"""The tuner in closed loop, without a clock of its own: an engine, a scraper, and a tick every few seconds.

The functions under test are the operator's own (`gather`, `decide`); scraper, counters and the server's rule with its
probes are the simulator's. The engine is simpler than the simulator's: it decodes a given number of requests all the
time, at the curve's own rates and without noise, so that a wrong decision is the tuner's and nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.simulate.counting import Count, Key
from sglang_operator.simulate.curves.curve import Curve
from sglang_operator.simulate.curves.curve import Mode as EngineMode
from sglang_operator.simulate.scraper import NAMESPACE, POD, START, Scraper
from sglang_operator.simulate.steering import Threshold
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import gather
from sglang_operator.tuning.policy import Outcome, TunerState, Verdict, decide, initial
from sglang_specpatch.runtime.buckets import bucket as bucket_label


class SteadyEngine:
    """Decodes `batch_at(seconds)` requests all the time; 0 requests: idle."""

    def __init__(self, curve: Curve, batch_at: Callable[[float], int], *, queued: int = 0) -> None:
        self.curve, self.batch_at, self.queued = curve, batch_at, queued
        self.steering = Threshold(0)
        self.tokens = self.best_tokens = self.lost_by_probes = 0.0
        self.counts: dict[Key, Count] = {}
        self._now = 0.0
        self._mode: EngineMode | None = None

    @property
    def threshold(self) -> int:
        """The threshold in force."""
        return self.steering.batch_size

    def run_until(self, seconds: float) -> None:
        """Let time pass."""
        while self._now < seconds:
            batch = self.batch_at(self._now)
            if batch:
                self._decode(batch, min(1.0, seconds - self._now))
            else:
                self._now, self._mode = self._now + min(1.0, seconds - self._now), None

    def restart(self) -> None:
        """Come back with counters at zero, with the threshold of the environment and no probes."""
        self.counts = {}
        self.steering.restart(self.threshold)

    def _decode(self, batch: int, at_most: float) -> None:
        rates = {mode: self.curve.tokens_per_second(mode, batch) for mode in (EngineMode.ON, EngineMode.OFF)}
        choice = self.steering.choose(batch, rates[EngineMode.ON], rates[EngineMode.OFF])
        mode = EngineMode.ON if choice.drafted_tokens else EngineMode.OFF
        each = self.curve.step_seconds(mode, batch)
        steps = self.steering.take(batch, max(1, int(at_most / each)), 0.0, 0.0)
        passed, best = steps * each, max(rates.values())
        self._now += passed
        self.tokens += rates[mode] * passed
        self.best_tokens += best * passed
        if choice.probing:
            self.lost_by_probes += (best - rates[mode]) * passed
        self._count(mode, batch, steps, each, choice.probing)

    def _count(self, mode: EngineMode, batch: int, steps: int, each: float, probing: bool) -> None:
        count = self.counts.setdefault((mode.value, bucket_label(batch)), Count())
        counted = steps - (mode is not self._mode)
        self._mode = mode
        count.steps += counted
        count.requests += counted * batch
        count.tokens += counted * each * self.curve.tokens_per_second(mode, batch)
        count.seconds += counted * each
        count.seconds_squared += counted * each * each
        count.probe_steps += steps * probing


@dataclass
class Loop:
    """One service with one pod. `scraping(seconds)` says whether the scraper works then."""

    engine: SteadyEngine
    policy: DisableThreshold
    limits: Limits = field(default_factory=Limits)
    tick_seconds: float = 10
    scrape_seconds: float = 5
    max_age_seconds: int = 60
    scraping: Callable[[float], bool] = lambda _: True
    now: float = 0.0
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.decision = initial(self.policy, START)
        self.engine.steering.set(self.decision.batch_size, self.decision.probe_permille)
        self.state = TunerState()
        self.scraper = Scraper()

    def run_until(self, seconds: float) -> None:
        """Let engine, scraper and tuner run."""
        while self.now < seconds:
            self.now += self.scrape_seconds
            self.engine.run_until(self.now)
            if self.scraping(self.now):
                counts = {key: replace(count) for key, count in self.engine.counts.items()}
                self.scraper.scrape(self.now, counts, running=1, queued=self.engine.queued)
            if self.now % self.tick_seconds < self.scrape_seconds:
                self._tick()

    def restart_operator(self) -> None:
        """Forget all but the decision."""
        self.state = TunerState()

    def _tick(self) -> None:
        now = START + timedelta(seconds=self.now)
        evidence = gather(
            self.scraper.snapshot(self.now),
            namespace=NAMESPACE,
            pods=(POD,),
            now=now,
            max_age_seconds=self.max_age_seconds,
        )
        verdict = decide(self.policy, evidence, self.decision, now, self.limits, self.state)
        self.state, self.decision = verdict.state, verdict.decision
        self.verdicts.append((self.now, verdict))
        self.engine.steering.set(self.decision.batch_size, self.decision.probe_permille)

    @property
    def moves(self) -> list[tuple[float, Decision]]:
        """Seconds and decision of every move so far."""
        return [(at, verdict.decision) for at, verdict in self.verdicts if verdict.outcome is Outcome.MOVED]

"""The tuner in closed loop, without a clock of its own: an engine, a scraper, and a tick every few seconds.

The functions under test are the operator's own (`gather`, `decide`); what stands in for the rest is small. `Scraper`
does what Prometheus does to counters: samples at an interval, differences within a window, nothing before the second
sample. Two engines: `SteadyEngine` takes rates from a curve directly and costs nothing to run, `SteppedEngine` runs
the simulated engine's own scheduler step by step, with the engine patch's own rule and counting.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from evidence import START

from engine_sim.acceptance import AcceptanceTable
from engine_sim.clock import VirtualEngine
from engine_sim.curves import Curve
from engine_sim.curves import Mode as EngineMode
from engine_sim.scheduler import Limits as EngineLimits
from engine_sim.scheduler import Scheduler
from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import gather
from sglang_operator.tuning.policy import Move, TunerState, Verdict, decide, initial
from sglang_operator.tuning.samples import BUCKETS, MetricsSnapshot, Mode, ModeSample, PodLoad
from sglang_specpatch.runtime.counters import StepClock, StepSums
from sglang_specpatch.runtime.counters import bucket as bucket_label
from sglang_specpatch.runtime.threshold import drafting_stops

Totals = dict[tuple[Mode, str], tuple[float, float]]
"""Tokens and seconds so far, by mode and bucket label."""

BUCKET_BY_LABEL = {bucket.label: bucket for bucket in BUCKETS}


class Engine(Protocol):
    """A server whose threshold can be changed, and that counts its decode steps."""

    threshold: int

    def run_until(self, seconds: float) -> None:
        """Let time pass."""

    def totals(self) -> Totals:
        """The counters as they are now."""


class SteadyEngine:
    """Decodes `batch_at(seconds)` requests all the time, at the curve's own rates; 0 requests: idle."""

    def __init__(self, curve: Curve, batch_at: Callable[[float], int]) -> None:
        self.curve, self.batch_at = curve, batch_at
        self.threshold = 0
        self.tokens = 0.0
        self.best_tokens = 0.0
        self.seconds_by_mode: defaultdict[Mode, float] = defaultdict(float)
        self._now = 0.0
        self._totals: Totals = {}

    def run_until(self, seconds: float) -> None:
        while self._now < seconds:
            passed = min(1.0, seconds - self._now)
            batch = self.batch_at(self._now)
            self._now += passed
            if batch:
                self._decode(batch, passed)

    def _decode(self, batch: int, passed: float) -> None:
        mode = Mode.OFF if drafting_stops(self.threshold, batch) else Mode.ON
        rates = {mode: self.curve.tokens_per_second(EngineMode(mode.value), batch) for mode in Mode}
        self.tokens += rates[mode] * passed
        self.best_tokens += max(rates.values()) * passed
        self.seconds_by_mode[mode] += passed
        key = (mode, bucket_label(batch))
        tokens, seconds = self._totals.get(key, (0.0, 0.0))
        self._totals[key] = (tokens + rates[mode] * passed, seconds + passed)

    def totals(self) -> Totals:
        return dict(self._totals)


class SteppedEngine:
    """The simulated engine's scheduler in closed loop: `clients` requests at once, each followed by the next."""

    def __init__(self, curve: Curve, clients: int, *, prompt_tokens: int = 128, output_tokens: int = 160) -> None:
        self.threshold = 0
        self._request = (prompt_tokens, output_tokens)
        self._clock, self._sums = StepClock(), StepSums()
        self._totals: defaultdict[tuple[Mode, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        scheduler = Scheduler(
            limits=EngineLimits(max_running=256, max_total_tokens=1_000_000, chunked_prefill_tokens=8192),
            curve=curve,
            acceptance=AcceptanceTable(curve.accept_length, 4, seed=1),
            hooks=self,
        )
        self._engine = VirtualEngine(scheduler, on_finished=lambda _: self._again())
        self._clients = self._wanted = 0
        self.set_clients(clients)

    def set_clients(self, clients: int) -> None:
        """Have so many requests at once; surplus clients leave when their request ends."""
        self._wanted = clients
        for _ in range(clients - self._clients):
            self._engine.arrive(*self._request)
        self._clients = max(self._clients, clients)

    def _again(self) -> None:
        if self._clients > self._wanted:
            self._clients -= 1
        else:
            self._engine.arrive(*self._request)

    def run_until(self, seconds: float) -> None:
        self._engine.run_until(seconds)

    def totals(self) -> Totals:
        for (mode, label), (_, tokens, seconds) in self._sums.take().items():
            before = self._totals[Mode(mode), label]
            self._totals[Mode(mode), label] = (before[0] + tokens, before[1] + seconds)
        return dict(self._totals)

    def mode(self, batch_size: int) -> EngineMode:
        return EngineMode.OFF if drafting_stops(self.threshold, batch_size) else EngineMode.ON

    def launched(self, *, is_decode: bool, now_seconds: float) -> None:
        self._clock.launch(is_decode, now_seconds)

    def decoded(self, mode: EngineMode, batch_size: int, tokens: int, now_seconds: float) -> None:
        seconds = self._clock.result(now_seconds)
        if seconds is not None:
            self._sums.add(mode.value, batch_size, tokens, seconds)

    def idle(self, now_seconds: float) -> None:
        self._clock.idle()


class Scraper:
    """Samples of one pod's counters, and the differences that Prometheus would give."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._samples: list[Totals] = []

    def scrape(self, now: float, totals: Totals) -> None:
        """Take one sample."""
        self._times.append(now)
        self._samples.append(totals)

    def snapshot(self, now: float, *, window: float, recent: float) -> MetricsSnapshot:
        """What the queries would return."""
        taken_at = START + timedelta(seconds=now)
        if not self._times:
            return MetricsSnapshot(taken_at=taken_at)
        increase, lately = self._increase(now, window), self._increase(now, recent)
        modes = tuple(
            ModeSample(
                namespace="team",
                pod="pod",
                mode=mode,
                bucket=BUCKET_BY_LABEL[label],
                tokens=tokens,
                seconds=seconds,
                recent_seconds=lately.get((mode, label), (0.0, 0.0))[1],
            )
            for (mode, label), (tokens, seconds) in increase.items()
        )
        newest = START + timedelta(seconds=self._times[-1])
        load = PodLoad(namespace="team", pod="pod", sampled_at=newest, running_requests=None)
        return MetricsSnapshot(taken_at=taken_at, modes=modes, loads=(load,))

    def _increase(self, now: float, window: float) -> Totals:
        inside = self._samples[bisect.bisect_right(self._times, now - window) :]
        found: Totals = {}
        for key, (tokens, seconds) in (inside[-1] if inside else {}).items():
            first = next(index for index, sample in enumerate(inside) if key in sample)
            if first < len(inside) - 1:
                found[key] = (tokens - inside[first][key][0], seconds - inside[first][key][1])
        return found


@dataclass
class Loop:
    """One service with one pod. `scraping(seconds)` says whether the scraper works then."""

    engine: Engine
    policy: DisableThreshold
    limits: Limits = field(default_factory=Limits)
    tick_seconds: float = 10
    scrape_seconds: float = 5
    window_seconds: float = 900
    recent_seconds: float = 60
    max_age_seconds: int = 60
    scraping: Callable[[float], bool] = lambda _: True
    now: float = 0.0
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.previous = initial(self.policy, START)
        self.engine.threshold = self.previous.batch_size
        self.state = TunerState()
        self.scraper = Scraper()

    def run_until(self, seconds: float) -> None:
        """Let engine, scraper and tuner run."""
        while self.now < seconds:
            self.now += self.scrape_seconds
            self.engine.run_until(self.now)
            if self.scraping(self.now):
                self.scraper.scrape(self.now, self.engine.totals())
            if self.now % self.tick_seconds < self.scrape_seconds:
                self._tick()

    def _tick(self) -> None:
        snapshot = self.scraper.snapshot(self.now, window=self.window_seconds, recent=self.recent_seconds)
        now = START + timedelta(seconds=self.now)
        evidence = gather(snapshot, namespace="team", pods=("pod",), now=now, max_age_seconds=self.max_age_seconds)
        verdict = decide(self.policy, evidence, self.previous, now, self.limits, self.state)
        self.state = verdict.state
        self.verdicts.append((self.now, verdict))
        if isinstance(verdict, Move):
            self.previous = verdict.decision
            self.engine.threshold = verdict.decision.batch_size

    @property
    def moves(self) -> list[tuple[float, Decision]]:
        """Seconds and decision of every move so far."""
        return [(at, verdict.decision) for at, verdict in self.verdicts if isinstance(verdict, Move)]

    def threshold_at(self, moment: datetime) -> int:
        """The threshold in force at a moment."""
        past = [decision for _, decision in self.moves if decision.decided_at <= moment]
        return past[-1].batch_size if past else initial(self.policy, START).batch_size

"""Who changes a server's threshold from outside, from what a scraper saw: the operator's own tuner, and a bandit.

`Tuner` calls the same pure functions as the operator in a cluster: `initial`, `gather` and `decide`. What a decision
sets in motion there, a reconciling pass and a live update of each pod, is a delay here, and can be refused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.settings import Settings
from sglang_operator.simulate.scraper import NAMESPACE, POD, START, Scraper
from sglang_operator.simulate.steering import Threshold
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import gather
from sglang_operator.tuning.policy import TunerState, Verdict, decide, initial

MAX_AGE_SECONDS = Settings().metrics_max_age_seconds
UPDATE_SECONDS = (0.5, 3.0)
"""From a decision until the server obeys it, evenly spread."""


class Operator(Protocol):
    """Changes a threshold now and then."""

    threshold: Threshold

    def scraped(self, now: float, tokens: float) -> None:
        """A scrape has just happened; the server has made so many tokens since the start."""

    def tick(self, now: float) -> None:
        """The time of a pass has come."""


class Nobody:
    """Leaves the threshold where it is."""

    def __init__(self, batch_size: int) -> None:
        self.threshold = Threshold(batch_size)

    def scraped(self, now: float, tokens: float) -> None:
        """Nothing to do."""

    def tick(self, now: float) -> None:
        """Nothing to do."""


class Bandit:
    """Epsilon-greedy over a few thresholds, rewarded with the tokens per second between two scrapes.

    It is told nothing about batch sizes, which is what makes it a baseline: a threshold gets the credit and the blame
    for the load that it happened to meet. Rewards are means that forget, with weight `STEP` for the newest, since a
    drifting server has no rates that hold for ever (Sutton and Barto, Reinforcement Learning, 2nd ed., section 2.5).
    """

    ARMS = (0, 1, 8, 32, 64, 128)
    EPSILON = 0.1
    STEP = 0.2

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(f"bandit {seed}")
        self._rewards: dict[int, float] = {}
        self._last: tuple[float, float] | None = None
        self.threshold = Threshold(32)

    def scraped(self, now: float, tokens: float) -> None:
        """Reward the arm that was pulled, and pull the next."""
        if self._last and now > self._last[0]:
            arm = self.threshold.batch_size
            reward = (tokens - self._last[1]) / (now - self._last[0])
            known = self._rewards.get(arm, reward)
            self._rewards[arm] = known + self.STEP * (reward - known)
        self._last = (now, tokens)
        untried = [arm for arm in self.ARMS if arm not in self._rewards]
        if untried or self._draws.random() < self.EPSILON:
            self.threshold.batch_size = self._draws.choice(untried or self.ARMS)
        else:
            self.threshold.batch_size = max(self.ARMS, key=lambda arm: self._rewards[arm])

    def tick(self, now: float) -> None:
        """It acts on scrapes alone."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A verdict of the tuner, the second of it, and the decision in force before."""

    at: float
    verdict: Verdict
    before: Decision

    @property
    def moved(self) -> bool:
        """Whether the threshold changed."""
        return self.verdict.decision.batch_size != self.before.batch_size


class Tuner:
    """The operator's tuner of one service with one pod.

    refused: whether the server refuses live updates at a second.
    """

    def __init__(
        self,
        policy: DisableThreshold,
        limits: Limits,
        scraper: Scraper,
        seed: int,
        *,
        refused: Callable[[float], bool] = lambda _: False,
    ) -> None:
        self._policy, self._limits, self._scraper, self._refused = policy, limits, scraper, refused
        self._draws = random.Random(f"updates {seed}")
        self._state = TunerState()
        self.update_at = math.inf
        """When a live update will reach the server; infinity: none is under way."""
        self.decision = initial(policy, START)
        self.threshold = Threshold(self.decision.batch_size)
        self.decided: list[Decided] = []

    def scraped(self, now: float, tokens: float) -> None:
        """It looks at ticks alone."""

    def tick(self, now: float) -> None:
        """One pass of the tuning loop, and of the reconciling that repeats an update until it is obeyed."""
        moment = START + timedelta(seconds=now)
        evidence = gather(
            self._scraper.snapshot(now),
            namespace=NAMESPACE,
            pods=(POD,),
            now=moment,
            max_age_seconds=MAX_AGE_SECONDS,
        )
        verdict = decide(self._policy, evidence, self.decision, moment, self._limits, self._state)
        self.decided.append(Decided(at=now, verdict=verdict, before=self.decision))
        self._state, self.decision = verdict.state, verdict.decision
        wanted = (self.decision.batch_size, self.decision.probe_permille)
        if wanted != (self.threshold.batch_size, self.threshold.probe_permille) and math.isinf(self.update_at):
            self.update_at = now + self._draws.uniform(*UPDATE_SECONDS)

    def update(self, now: float) -> None:
        """The update reaches the server, with what is decided by now."""
        self.update_at = math.inf
        if not self._refused(now):
            self.threshold.set(self.decision.batch_size, self.decision.probe_permille)

    def server_restarted(self) -> None:
        """It boots with the last decided threshold, from its environment."""
        self.threshold.restart(self.decision.batch_size)

    def operator_restarted(self) -> None:
        """All is forgotten but the decision, which the cluster keeps."""
        self._state = TunerState()

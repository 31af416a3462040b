"""A continuous-batching server that jumps: equal decode steps are taken together, up to the next thing that happens.

Between two arrivals, ends of requests, changes of mode and moments that the caller names, every decode step costs the
same. So the server computes how many of them fit and takes them at once; a run costs by its requests, not its steps.
Prefill goes before decode, at most `LARGEST_BATCH` requests run, the rest queue.

Within a class of prompts, all running requests gain the same number of tokens in a step, so that a class needs one
number for the progress of all (as in fair queueing's virtual time), and a heap of the values at which requests end.
Requests advance by their class's mean; the randomness of acceptance is in the counters, where it matters to a tuner.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from sglang_operator.simulate.costs import DRAFTED_TOKENS, LARGEST_BATCH, Costs, length_variance
from sglang_operator.simulate.counting import Counting
from sglang_operator.simulate.ledger import Ledger, Span
from sglang_operator.simulate.steering import Steering
from sglang_operator.simulate.traffic import Request, Source

CHUNK_TOKENS = 8192
"""Prompt tokens of one prefill step (SGLang's `--chunked-prefill-size` on large cards)."""


class _Running(NamedTuple):
    """A running request: the progress of its lane at which it ends, and its context minus the lane's progress."""

    end: float
    context_offset: float


@dataclass(slots=True)
class _Lane:
    """The running requests of one class of prompts."""

    progress: float = 0.0
    """Tokens that a request would have if it had run since the start."""
    running: list[_Running] = field(default_factory=list)
    """A heap."""
    context_offset: float = 0.0
    """Sum over `running`."""


class _Yield(NamedTuple):
    """What a step brings to a request of each class, in tokens: mean and variance."""

    means: tuple[float, ...]
    variances: tuple[float, ...]


class _Step(NamedTuple):
    """What one step brings to the batch, in tokens: mean and variance; and how many such steps the batch can take."""

    tokens: float
    variance: float
    until_one_ends: int


class Engine:
    """One server.

    Between two calls, its driver may change `pace`, which stretches all times, and `steering`.
    factors: acceptance of each class of prompts, in terms of the curve's mean.
    """

    def __init__(
        self, costs: Costs, factors: tuple[float, ...], source: Source, steering: Steering, ledger: Ledger, seed: int
    ) -> None:
        self.costs, self.source, self.steering, self.ledger = costs, source, steering, ledger
        self.counting = Counting(seed)
        self.pace = 1.0
        self.now = 0.0
        self._factors = factors
        self._queue: deque[Request] = deque()
        self._lanes = [_Lane() for _ in factors]
        self._batch = 0
        self._yields = {0: _Yield(tuple(1.0 for _ in factors), tuple(0.0 for _ in factors))}

    @property
    def running(self) -> int:
        """Requests that run."""
        return self._batch

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def run_until(self, end: float) -> None:
        """Let requests come, run and end until `end`, or a step beyond it."""
        while self.now < end:
            self._queue.extend(self.source.take(self.now))
            if self._queue and self._batch < LARGEST_BATCH:
                self._prefill()
            elif self._batch:
                self._decode(end)
            else:
                self.counting.interrupt()
                self.now = min(end, max(self.source.next_at, self.now))

    def restart(self, down_seconds: float) -> None:
        """Lose all requests and counters, and be away for some time."""
        self.source.gone(self._batch + len(self._queue))
        self._queue.clear()
        self._lanes = [_Lane() for _ in self._factors]
        self._batch = 0
        self.counting.restart()
        self.now += down_seconds

    def _prefill(self) -> None:
        """Admit what fits one prefill step."""
        tokens = 0
        while self._queue and self._batch < LARGEST_BATCH:
            request = self._queue[0]
            if tokens and tokens + request.prompt_tokens > CHUNK_TOKENS:
                break
            self._queue.popleft()
            tokens += request.prompt_tokens
            self._admit(request)
        self.counting.interrupt()
        self.now += self.costs.curve.prefill_seconds(tokens) * self.pace

    def _admit(self, request: Request) -> None:
        """Its first token comes with the prefill; at least one more is decoded."""
        lane = self._lanes[request.kind]
        offset = request.context_tokens + request.prompt_tokens + 1 - lane.progress
        heapq.heappush(lane.running, _Running(lane.progress + max(1, request.output_tokens - 1), offset))
        lane.context_offset += offset
        self._batch += 1

    def _decode(self, end: float) -> None:
        """Take as many equal steps as there are."""
        batch, pace = self._batch, self.pace
        on_tokens, context = self._drafting()
        on_seconds, off_seconds = self.costs.step_seconds(batch, context)
        on_rate, off_rate = on_tokens / (on_seconds * pace), batch / (off_seconds * pace)
        drafted, probing = self.steering.choose(batch, on_rate, off_rate)
        gains = self._yield(drafted)
        step = self._step(gains)
        # Linear in the number of drafted tokens: see `costs`.
        seconds = (off_seconds + (on_seconds - off_seconds) * drafted / DRAFTED_TOKENS) * pace
        until = math.ceil((min(end, self.source.next_at) - self.now) / seconds)
        most = max(1, min(until, step.until_one_ends))
        steps = self.steering.take(batch, most, step.tokens / batch - 1, step.variance / (batch * batch))
        span = Span(
            self.now, batch, steps, steps * seconds, steps * step.tokens - self._advance(gains.means, steps),
            drafted > 0, probing, step.tokens / seconds, on_rate, off_rate,
        )  # fmt: skip
        self.now += span.seconds
        self.ledger.add(span)
        self.counting.add(span, steps * step.variance)

    def _drafting(self) -> tuple[float, float]:
        """Tokens of a drafting step, and the context of all running requests."""
        tokens = context = 0.0
        for lane, mean in zip(self._lanes, self._yield(DRAFTED_TOKENS).means, strict=True):
            count = len(lane.running)
            tokens += count * mean
            context += lane.context_offset + count * lane.progress
        return tokens, context

    def _step(self, gains: _Yield) -> _Step:
        tokens = variance = 0.0
        until = math.inf
        for lane, mean, spread in zip(self._lanes, gains.means, gains.variances, strict=True):
            if lane.running:
                tokens += len(lane.running) * mean
                variance += len(lane.running) * spread
                until = min(until, (lane.running[0].end - lane.progress) / mean)
        return _Step(tokens, variance, math.ceil(until - 1e-9))

    def _yield(self, drafted_tokens: int) -> _Yield:
        known = self._yields.get(drafted_tokens)
        if known is None:
            means = tuple(self.costs.accept_length(factor, drafted_tokens) for factor in self._factors)
            variances = tuple(length_variance(mean, drafted_tokens + 1) for mean in means)
            known = self._yields[drafted_tokens] = _Yield(means, variances)
        return known

    def _advance(self, means: tuple[float, ...], steps: int) -> float:
        """Move all requests on and end what is done; returns the tokens that the last step had beyond their ends."""
        over, ended = 0.0, 0
        for lane, each in zip(self._lanes, means, strict=True):
            if not lane.running:
                continue
            lane.progress += steps * each
            while lane.running and lane.running[0].end <= lane.progress + 1e-6:
                gone = heapq.heappop(lane.running)
                over += lane.progress - gone.end
                lane.context_offset -= gone.context_offset
                ended += 1
        if ended:
            self._batch -= ended
            self.source.gone(ended)
        return over

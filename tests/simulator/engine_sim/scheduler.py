"""Continuous batching as a step machine that knows no clock.

`begin` says what the engine does next (a prefill if requests wait and fit, else one decode step of everything that
runs, else nothing) and how long it takes; `finish` applies it and says which request got how many tokens. Whoever
drives it lets the time pass in between: the server in real time, a test or the tuner's simulation by adding numbers.

As in SGLang, prefill goes before decode, at most `max_running` requests run, the rest queue in order of arrival, and
the mode of a decode step is decided from the number of requests in it, right before it runs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from typing import Protocol

from sglang_operator.simulate.curves.acceptance import AcceptanceTable
from sglang_operator.simulate.curves.curve import Curve, Mode

_WINDOW_STEPS = 40  # SGLang logs and exports decode statistics every 40 steps


class Hooks(Protocol):
    """What is called around the steps, where the engine patch calls its own functions; times are the driver's."""

    def mode(self, batch_size: int) -> Mode:
        """Decide the mode of a decode step over `batch_size` requests."""

    def launched(self, *, is_decode: bool, now_seconds: float) -> None:
        """A forward begins."""

    def decoded(self, mode: Mode, batch_size: int, tokens: int, now_seconds: float) -> None:
        """A decode step has ended with that many output tokens."""

    def idle(self, now_seconds: float) -> None:
        """There is nothing to do."""


class Kind(enum.Enum):
    """What a step does."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one scheduler can hold: requests at once, tokens of KV cache, prompt tokens per prefill step."""

    max_running: int
    max_total_tokens: int
    chunked_prefill_tokens: int


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """One request inside the engine; times are seconds on the driver's clock."""

    number: int
    prompt_tokens: int
    output_tokens: int
    arrived_seconds: float
    streaming: bool = False
    generated: int = 0
    draft_steps: int = 0
    first_token_seconds: float | None = None
    finished_seconds: float | None = None
    aborted: bool = False
    cursor: int = 0

    @property
    def reserved_tokens(self) -> int:
        """KV cache that the request needs at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One forward of the engine; mode is None for a prefill."""

    kind: Kind
    jobs: tuple[Job, ...]
    seconds: float
    mode: Mode | None


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought: new tokens in sum, the requests that got some, and those that are done now."""

    tokens: int
    jobs: tuple[Job, ...]
    finished: tuple[Job, ...]


class Scheduler:
    """Queue and running batch of one rank group."""

    def __init__(self, *, limits: Limits, curve: Curve, acceptance: AcceptanceTable, hooks: Hooks) -> None:
        self.limits = limits
        self.curve = curve
        self.acceptance = acceptance
        self.hooks = hooks
        self.queue: deque[Job] = deque()
        self.running: list[Job] = []
        self._recent_accepts: deque[tuple[int, int]] = deque(maxlen=_WINDOW_STEPS)

    def submit(self, job: Job) -> None:
        """Queue a request.

        Raises ValueError if it could never run: its prompt and output do not fit the KV cache.
        """
        if job.reserved_tokens > self.limits.max_total_tokens:
            raise ValueError(
                f"the request needs {job.reserved_tokens} tokens (prompt {job.prompt_tokens} + output "
                f"{job.output_tokens}), more than the KV cache of {self.limits.max_total_tokens} tokens holds"
            )
        job.cursor = self.acceptance.start(job.number)
        self.queue.append(job)

    def abort(self, job: Job) -> None:
        """Forget a request whose client has gone; a step under way finishes without it."""
        job.aborted = True
        if job in self.queue:
            self.queue.remove(job)
        if job in self.running:
            self.running.remove(job)

    def begin(self, now_seconds: float) -> Step | None:
        """Start the next step, or return None if there is nothing to do."""
        admitted = self._admit()
        if admitted:
            self.hooks.launched(is_decode=False, now_seconds=now_seconds)
            tokens = sum(job.prompt_tokens for job in admitted)
            return Step(Kind.PREFILL, admitted, self.curve.prefill_seconds(tokens), None)
        if not self.running:
            self.hooks.idle(now_seconds)
            return None
        mode = self.hooks.mode(len(self.running))
        self.hooks.launched(is_decode=True, now_seconds=now_seconds)
        return Step(Kind.DECODE, tuple(self.running), self.curve.step_seconds(mode, len(self.running)), mode)

    def finish(self, step: Step, now_seconds: float) -> Outcome:
        """Apply a step that ended now."""
        jobs = tuple(job for job in step.jobs if not job.aborted)
        tokens = self._prefilled(jobs, now_seconds) if step.mode is None else self._decoded(jobs, step.mode)
        finished = tuple(job for job in jobs if job.generated >= job.output_tokens)
        for job in finished:
            job.finished_seconds = now_seconds
        if finished:
            self.running = [job for job in self.running if job.finished_seconds is None]
        if step.mode is not None:
            self.hooks.decoded(step.mode, len(jobs), tokens, now_seconds)
        return Outcome(tokens, jobs, finished)

    @property
    def used_tokens(self) -> int:
        """KV cache in use."""
        return sum(job.prompt_tokens + job.generated for job in self.running)

    @property
    def accept_length(self) -> float | None:
        """Mean output tokens per request and speculative step over the last steps; None before the first."""
        requests = sum(count for count, _ in self._recent_accepts)
        return sum(tokens for _, tokens in self._recent_accepts) / requests if requests else None

    def _admit(self) -> tuple[Job, ...]:
        admitted: list[Job] = []
        prompt_tokens = 0
        free = self.limits.max_total_tokens - sum(job.reserved_tokens for job in self.running)
        while self.queue and len(self.running) + len(admitted) < self.limits.max_running:
            job = self.queue[0]
            too_long = admitted and prompt_tokens + job.prompt_tokens > self.limits.chunked_prefill_tokens
            if too_long or job.reserved_tokens > free:
                break
            admitted.append(self.queue.popleft())
            prompt_tokens += job.prompt_tokens
            free -= job.reserved_tokens
        return tuple(admitted)

    def _prefilled(self, jobs: tuple[Job, ...], now_seconds: float) -> int:
        for job in jobs:
            job.generated = 1
            job.first_token_seconds = now_seconds
        self.running.extend(jobs)
        return len(jobs)

    def _decoded(self, jobs: tuple[Job, ...], mode: Mode) -> int:
        before = sum([job.generated for job in jobs])
        if mode is Mode.ON:
            draw = self.acceptance.draw
            for job in jobs:
                job.generated = min(job.output_tokens, job.generated + draw(job.cursor))
                job.cursor += 1
                job.draft_steps += 1
        else:
            for job in jobs:
                job.generated += 1
        tokens = sum([job.generated for job in jobs]) - before
        if mode is not Mode.NONE:
            self._recent_accepts.append((len(jobs), tokens))
        return tokens

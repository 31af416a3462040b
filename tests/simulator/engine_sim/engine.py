"""The running engine: one scheduler per rank group in real time, requests in, tokens out.

A rank group is what SGLang's tokenizer manager sees as one scheduler: all tensor-parallel ranks of one data-parallel
replica. They decide alike by construction, so one scheduler stands for them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from engine_sim.arguments import PROBE_FIELD, THRESHOLD_FIELD, EngineArguments
from engine_sim.clock import Clock
from engine_sim.faults import Faults
from engine_sim.metrics import Metrics
from engine_sim.patch import Patched, PatchedControl, PatchRuntime, Unpatched, UpdateRefused
from engine_sim.scheduler import Hooks, Job, Limits, Outcome, Scheduler
from engine_sim.settings import Settings
from sglang_operator.simulate.curves.acceptance import AcceptanceTable, mean_for_chain
from sglang_operator.simulate.curves.curve import Curve, Mode

_MAX_LAG_SECONDS = 0.25
_THROUGHPUT_STEPS = 40
_DEFAULT_CHUNK_TOKENS = 8192
_SPECULATIVE_RUNNING_CAP = 48  # SGLang's own cap with speculation unless --max-running-requests is given
_DEFAULT_STEPS = 3


class Ticket:
    """A request as its HTTP handler sees it: a stream of how many tokens there are so far."""

    def __init__(self, job: Job, *, interval_tokens: int | None) -> None:
        self.job = job
        self._interval_tokens = interval_tokens
        self._sent = 0
        self._progress: asyncio.Queue[int] = asyncio.Queue()

    def note(self) -> None:
        """Pass new tokens on, if they are the last or enough of them to be streamed."""
        done = self.job.generated
        due = self._interval_tokens is not None and done - self._sent >= self._interval_tokens
        if due or done >= self.job.output_tokens:
            self._sent = done
            self._progress.put_nowait(done)

    async def progress(self) -> AsyncIterator[int]:
        """Yield the number of output tokens so far, the last time when all are there."""
        done = 0
        while done < self.job.output_tokens:
            done = await self._progress.get()
            yield done


class RankGroup:
    """One scheduler, its live settings, and the task that lets its time pass."""

    def __init__(
        self,
        *,
        arguments: EngineArguments,
        settings: Settings,
        runtime: PatchRuntime | None,
        metrics: Metrics,
        index: int,
    ) -> None:
        self.index = index
        self.late_seconds = 0.0
        settled = {THRESHOLD_FIELD: arguments.threshold, PROBE_FIELD: arguments.probe_permille}
        self._live = {name: value for name, value in settled.items() if value is not None}
        self._overrides: dict[str, Any] = {}
        self._arguments = arguments
        self._metrics = metrics
        drafts = arguments.speculative_algorithm is not None
        active = runtime is not None and drafts and arguments.inactive_reason is None
        patched = self._patched_hooks(runtime) if runtime is not None and active else None
        self.control = runtime and PatchedControl(
            runtime, hooks=patched, drafts=drafts, inactive_reason=arguments.inactive_reason
        )
        hooks: Hooks = patched if patched is not None else Unpatched(Mode.ON if drafts else Mode.NONE)
        self.scheduler = Scheduler(
            limits=limits_of(arguments, settings),
            curve=settings.curve,
            acceptance=acceptance_of(arguments, settings.accept_length, settings.seed),
            hooks=hooks,
        )
        self._tickets: dict[Job, Ticket] = {}
        self._recent: deque[tuple[float, int]] = deque(maxlen=_THROUGHPUT_STEPS + 1)
        self._wake = asyncio.Event()

    def submit(self, ticket: Ticket) -> None:
        """Queue a request. Raises ValueError if it can never fit."""
        self.scheduler.submit(ticket.job)
        self._tickets[ticket.job] = ticket
        self._wake.set()

    def abort(self, ticket: Ticket) -> None:
        """Drop a request whose client has gone."""
        if self._tickets.pop(ticket.job, None) is not None:
            self.scheduler.abort(ticket.job)
            self._metrics.observe_aborted()

    async def run(self, clock: Clock) -> None:
        """Let steps pass for ever. Time is the sum of the steps' seconds unless the machine can't keep up with it."""
        now = clock.now()
        while True:
            step = self.scheduler.begin(now)
            if step is None:
                self._recent.clear()
                await self._wake.wait()
                self._wake.clear()
                now = clock.now()
                continue
            now += step.seconds
            await clock.sleep_until(now)
            late = clock.now() - now
            if late > _MAX_LAG_SECONDS:
                self.late_seconds += late
                now += late
            self._deliver(self.scheduler.finish(step, now), now)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second over the last steps; 0 when idle."""
        if len(self._recent) < 2:
            return 0.0
        (first, _), (last, _) = self._recent[0], self._recent[-1]
        return sum(tokens for _, tokens in itertools.islice(self._recent, 1, None)) / max(last - first, 1e-6)

    def internal_state(self) -> dict[str, Any]:
        """What SGLang calls the internal state of a scheduler, as far as it is simulated, with what the patch adds."""
        state: dict[str, Any] = {
            "effective_max_running_requests_per_dp": self.scheduler.limits.max_running,
            "last_gen_throughput": self.tokens_per_second,
            **self._overrides,
            **self._live,
        }
        if self.scheduler.accept_length is not None:
            state["avg_spec_accept_length"] = self.scheduler.accept_length
        if self.control is not None:
            self.control.add_readback(state)
        return state

    def check_update(self, key: str, value: object) -> None:
        """Judge one key of a live update as this release's scheduler does. Raises UpdateRefused with the reason."""
        if key in self._live and self.control is not None:
            self.control.check(key, value)
        elif key == "pp_max_micro_batch_size":
            largest = self.scheduler.limits.max_running
            if not (isinstance(value, int | float) and 1 <= value <= largest):
                raise UpdateRefused(f"Updating {key} to {value} is rejected: the valid range is [1, {largest}].")
        elif key not in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
            raise UpdateRefused(f"Updating {key} is not supported.")

    def apply_update(self, key: str, value: Any) -> None:
        """Put one key of a checked live update into force, from the next step on."""
        if key in self._live:
            self._live[key] = value
        else:
            self._overrides[key] = value

    def _patched_hooks(self, runtime: PatchRuntime) -> Patched:
        return Patched(
            runtime,
            read_threshold=lambda: self._live.get(THRESHOLD_FIELD, 0),
            read_permille=lambda: self._live.get(PROBE_FIELD, 0),
            num_steps=self._arguments.num_steps or _DEFAULT_STEPS,
            off_path=self._arguments.off_path or "auto",
            collector=self._metrics.patch_collector(self.index) if self._arguments.enable_metrics else None,
        )

    def _deliver(self, outcome: Outcome, now: float) -> None:
        self._recent.append((now, outcome.tokens))
        for job in outcome.jobs:
            ticket = self._tickets.get(job)
            if ticket is not None:
                ticket.note()
        for job in outcome.finished:
            if self._tickets.pop(job, None) is not None:
                self._metrics.observe_finished(job)


class Engine:
    """All rank groups, and what the HTTP interface asks of them."""

    def __init__(
        self, arguments: EngineArguments, settings: Settings, runtime: PatchRuntime | None, clock: Clock
    ) -> None:
        self.arguments = arguments
        self.settings = settings
        self.faults: Faults = settings.faults
        self.loaded = False
        self.stopping = False
        self.metrics = Metrics(arguments)
        self.clock = clock
        self.groups = tuple(
            RankGroup(arguments=arguments, settings=settings, runtime=runtime, metrics=self.metrics, index=index)
            for index in range(arguments.dp_size)
        )
        self._numbers = itertools.count(1)

    def submit(self, prompt_tokens: int, output_tokens: int, *, streaming: bool) -> tuple[RankGroup, Ticket]:
        """Queue a request at the rank groups in turn.

        Raises ValueError with a sentence for the client if the request can't be served.
        """
        limit = self.arguments.context_length
        if limit is not None and prompt_tokens + output_tokens > limit:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens: "
                f"{prompt_tokens} of the prompt and {output_tokens} for the completion."
            )
        number = next(self._numbers)
        group = self.groups[number % len(self.groups)]
        job = Job(number, prompt_tokens, output_tokens, self.clock.now(), streaming=streaming)
        ticket = Ticket(job, interval_tokens=self.arguments.stream_interval if streaming else None)
        group.submit(ticket)
        return group, ticket

    def drift(self, curve: Curve | None, accept_length: float | None) -> None:
        """Change the cost curve or the mean acceptance length under way, from the next step on."""
        for group in self.groups:
            if curve is not None:
                group.scheduler.curve = curve
            if accept_length is not None:
                group.scheduler.acceptance = acceptance_of(self.arguments, accept_length, self.settings.seed)

    def refresh_metrics(self) -> None:
        """Bring the gauges up to date; called before each scrape."""
        for group in self.groups:
            scheduler = group.scheduler
            self.metrics.refresh(
                group.index,
                running=len(scheduler.running),
                queued=len(scheduler.queue),
                used_tokens=scheduler.used_tokens,
                max_total_tokens=scheduler.limits.max_total_tokens,
                tokens_per_second=group.tokens_per_second,
                accept_length=scheduler.accept_length,
                late_seconds=group.late_seconds,
            )


def limits_of(arguments: EngineArguments, settings: Settings) -> Limits:
    """Limits of one rank group: from the command line, else SGLang's defaults, else the settings."""
    max_running = arguments.max_running_requests
    if max_running is None:
        speculates = arguments.speculative_algorithm is not None
        max_running = _SPECULATIVE_RUNNING_CAP if speculates else settings.max_running_requests
    else:
        max_running = max(1, max_running // arguments.dp_size)
    chunk = arguments.chunked_prefill_size
    return Limits(
        max_running=max_running,
        max_total_tokens=arguments.max_total_tokens or settings.max_total_tokens,
        chunked_prefill_tokens=chunk if chunk is not None and chunk > 0 else _DEFAULT_CHUNK_TOKENS,
    )


def acceptance_of(arguments: EngineArguments, accept_length: float, seed: int) -> AcceptanceTable:
    """Draws for the configured number of drafted tokens; `accept_length` is the mean with three of them."""
    longest = (arguments.num_steps or _DEFAULT_STEPS) + 1
    return AcceptanceTable(mean_for_chain(accept_length, _DEFAULT_STEPS + 1, longest), longest, seed)

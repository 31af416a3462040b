"""The functions that SGLang's patched files call; one line there, the work here.

`attach` puts one `SpecPatch` on the worker of a scheduler process; the other hooks find it through the worker.
Bookkeeping never takes the server down: if it fails once, it says so in the log and stops. The decision itself is
not guarded: a rank that decided alone would hang the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from . import settings, verify_tile
from .counters import OFF, ON, PUBLISH_SECONDS, Publisher, StepClock, StepSums
from .engine import (
    inactive_reason,
    logger,
    patch_identity,
    quiet_switch_log,
    setting_reader,
    trim_override_logs,
)
from .inactive import unsupported_worker
from .offpath import ZERO_STEP
from .ports import Batch, Collector, Processor, Reporter, Request, Scheduler, StepResult, Worker
from .reservation import most_draft_tokens
from .threshold import LiveSettings, ThresholdPolicy, install


class SpecPatch:
    """The patch in one scheduler process: the policy in force and the counters of its steps.

    `off_path` says how a step without drafts is run, and `off_path_reason` why not in the better way.
    """

    def __init__(self, policy: ThresholdPolicy, off_path: str = ZERO_STEP, off_path_reason: str | None = None) -> None:
        self.policy = policy
        self.off_path = off_path
        self.off_path_reason = off_path_reason
        self.clock = StepClock()
        self.sums = StepSums()
        self.publisher: Publisher | None = None
        self._metrics_decided = False
        self._chosen_mode: str | None = None
        self._steady_mode: str | None = None
        self._next_publication = 0.0
        self.counting = True

    def ensure_publisher(self, reporter: Reporter, collector: Collector | None) -> None:
        """Register the metrics once, on the rank that reports, if the server has metrics at all."""
        if self._metrics_decided:
            return
        self._metrics_decided = True
        if collector is not None and reporter.current_scheduler_metrics_enabled:
            self.publisher = Publisher(collector)
            self.publisher.off_path(self.off_path)
            self.publisher.settings(self.policy.threshold, self.policy.probe_permille)

    def result(self, now: float, batch: Batch, result: StepResult, predict_tokens: list[list[int]]) -> None:
        """Count the result of one decode step as SGLang hands it over."""
        seconds = self.clock.result(now)
        requests = batch.reqs
        batch_size = len(requests)
        if self.clock.kept_its_batch(batch_size):
            # Each request got all its tokens: the sum that SGLang made is right.
            tokens = result.num_correct_drafts + batch_size
        else:
            tokens = _output_tokens(requests, predict_tokens)
        self.count(now, seconds, result.speculative_num_draft_tokens > 1, batch_size, tokens)

    def count(self, now: float, seconds: float | None, drafted: bool, batch_size: int, tokens: int) -> None:
        """Count one decode step; `seconds` None: it was not back to back with the one before."""
        choice = self.policy.choice(self.clock.decodes_behind)
        if choice is None or choice.drafts is not drafted:
            # It only prepared the next one to draft.
            self._steady_mode = None
        else:
            mode = ON if drafted else OFF
            # The first step in another mode pays for the change.
            if seconds is not None and mode == self._steady_mode:
                self.sums.add(mode, batch_size, tokens, seconds)
            self._steady_mode = mode
            if choice.probe:
                self.sums.add_probe(mode, batch_size)
            elif mode != self._chosen_mode:
                self._note_transition(mode)
        if now >= self._next_publication:
            self.publish(now)

    def _note_transition(self, mode: str) -> None:
        if self._chosen_mode is not None and self.publisher is not None:
            self.publisher.transition(mode)
        self._chosen_mode = mode

    def publish(self, now: float) -> None:
        """Bring the Prometheus series up to date."""
        self._next_publication = now + PUBLISH_SECONDS
        sums = self.sums.take()
        if self.publisher is not None:
            self.publisher.settings(self.policy.threshold, self.policy.probe_permille)
            self.publisher.steps(sums)

    def stop_counting(self) -> None:
        """Called with an exception at hand: say so once and don't count any more."""
        self.counting = False
        logger.exception("Counting speculation steps failed and is off from now on; serving goes on.")


def attach(worker: Worker) -> None:
    """Called at the end of the worker's adaptive set-up: put the threshold above it, if this worker can obey one.

    Raises ValueError for a bad boot value (set past the command line), so the server doesn't start.
    """
    patch_identity()
    for name in settings.ALL:
        problem = settings.refusal(name, setting_reader(name)())
        if problem is not None:
            raise ValueError(problem)
    live = LiveSettings(setting_reader(settings.THRESHOLD), setting_reader(settings.PROBE_PERMILLE))
    try:
        reason = inactive_reason(worker)
    except Exception as error:
        logger.exception("Whether the speculation threshold can be obeyed is unknown; it is off.")
        reason = f"the patch does not understand this configuration ({type(error).__name__}: {error})"
    if reason is not None:
        worker.specpatch_inactive_reason = reason
        logger.warning("Speculation threshold inactive: %s", reason)
        return
    controller_class = import_module("sglang.srt.speculative.adaptive_runtime_state").AdaptiveController
    policy = install(worker, live, lambda: trim_override_logs(worker), controller_class)
    worker.specpatch = SpecPatch(policy)
    most_draft_tokens(max(policy.candidate_steps) + 1)
    quiet_switch_log(worker)
    logger.info("Speculation threshold active: %s = %d", settings.THRESHOLD, policy.threshold)


def note_forward(worker: object, batch: Batch) -> None:
    """Called at the start of each forward pass of the worker."""
    patch = _active(worker)
    if patch is None or not patch.counting:
        return
    try:
        is_decode = not (batch.is_extend_in_batch or batch.forward_mode.is_extend())
        patch.clock.launch(is_decode, time.perf_counter(), len(batch.reqs))
    except Exception:
        patch.stop_counting()


def note_result(processor: Processor, batch: Batch, result: StepResult, predict_tokens: list[list[int]]) -> None:
    """Called when the tokens of a decode step are on the host: one list per request of the batch."""
    patch = _active(processor.model_worker)
    if patch is None or not patch.counting:
        return
    try:
        patch.ensure_publisher(processor.metrics_reporter, processor.metrics_collector)
        patch.result(time.perf_counter(), batch, result, predict_tokens)
    except Exception:
        patch.stop_counting()


def note_idle(scheduler: Scheduler) -> None:
    """Called on each scheduler turn without a batch."""
    patch = _active(scheduler.draft_worker)
    if patch is None or not patch.counting:
        return
    try:
        patch.ensure_publisher(scheduler.metrics_reporter, scheduler.metrics_collector)
        patch.clock.idle()
        patch.publish(time.perf_counter())
    except Exception:
        patch.stop_counting()


def accepts_update(scheduler: Scheduler, updates: Mapping[str, object]) -> bool:
    """Called with all keys of a live update before any is applied; False refuses them all."""
    problem = _update_problem(scheduler, updates)
    if problem is not None:
        logger.warning("Live update refused: %s", problem)
    return problem is None


def update_check(scheduler: Scheduler, rejected: type[Exception]) -> Callable[[str, object], None]:
    """Return the validator of one live setting for releases that keep a table of them; it raises `rejected`."""

    def validate(key: str, value: object) -> None:
        problem = _update_problem(scheduler, {key: value})
        if problem is not None:
            raise rejected(f"Live update refused: {problem}")

    return validate


def add_readback(scheduler: Scheduler, state: dict[str, object]) -> None:
    """Called with the internal state of one scheduler before it is sent: say what is in force, and who says so."""
    worker = scheduler.draft_worker
    patch = _active(worker)
    generation, release = patch_identity()
    if patch is not None:
        state[settings.THRESHOLD] = patch.policy.threshold
        state[settings.PROBE_PERMILLE] = patch.policy.probe_permille
    state["specpatch"] = {
        "generation": generation,
        "release": release,
        "active": patch is not None,
        "inactive_reason": None if patch is not None else _why_inactive(worker),
        "off_path": None if patch is None else patch.off_path,
        "off_path_reason": None if patch is None else patch.off_path_reason,
        "verify_tile": verify_tile.in_use(),
    }


def _update_problem(scheduler: Scheduler, updates: Mapping[str, object]) -> str | None:
    ours = [name for name in settings.LIVE if name in updates]
    if ours and _active(scheduler.draft_worker) is None:
        return f"{ours[0]} has no effect on this server: {_why_inactive(scheduler.draft_worker)}"
    return settings.update_refusal(updates)


def _active(worker: object | None) -> SpecPatch | None:
    patch = getattr(worker, "specpatch", None)
    return patch if isinstance(patch, SpecPatch) else None


def _why_inactive(worker: object | None) -> str:
    if worker is None:
        return "speculative decoding is off (no --speculative-algorithm)"
    reason = getattr(worker, "specpatch_inactive_reason", None)
    return reason or unsupported_worker(worker)


def _output_tokens(requests: Sequence[Request], predict_tokens: list[list[int]]) -> int:
    """Count the tokens that requests will get: those that ended before this step get none of it."""
    if [request.finished_reason for request in requests].count(None) == len(requests):
        return sum(map(len, predict_tokens))
    return sum(
        len(tokens)
        for request, tokens in zip(requests, predict_tokens, strict=True)
        if request.finished_reason is None and not request.is_retracted
    )

"""The value rule of the threshold and the decision made from it at each decode step."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .ports import ControllerClass, StepPolicy, Worker

FIELD = "speculative_disable_batch_threshold"
MAX_THRESHOLD = 1_000_000


def refusal(value: object) -> str | None:
    """Say why a value can't be a threshold, or None if it can: a plain int from 0 to 1,000,000."""
    if type(value) is not int:
        return f"{FIELD} must be a whole number, got {value!r} ({type(value).__name__})"
    if not 0 <= value <= MAX_THRESHOLD:
        return f"{FIELD} must be from 0 to {MAX_THRESHOLD}, got {value}"
    return None


def parse_threshold(text: str) -> int:
    """Read the command-line value; argparse prints the sentence of the raised ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) <= MAX_THRESHOLD):
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 0 to {MAX_THRESHOLD} "
            f"(0 = always speculate, 1 = never, N = stop drafting at N requests), got {text!r}"
        )
    return int(text)


def drafting_stops(threshold: int, batch_size: int) -> bool:
    """Decide one step: no drafting once `threshold` or more requests decode together; 0 never stops it."""
    return 0 < threshold <= batch_size


class ConfiguredSteps:
    """The policy of a server without `--speculative-adaptive`: always the configured number of steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._cuda_graph_bs: list[int] | None = None

    @property
    def candidate_steps(self) -> list[int]:
        """The configured number of steps alone."""
        return [self._steps]

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Keep the captured batch sizes: any of them may be needed, since the threshold can move."""
        self._cuda_graph_bs = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Ignore the batch."""
        return self._steps

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Learn nothing: the acceptance rate does not move the step count."""
        return None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """All captured batch sizes."""
        return self._cuda_graph_bs


class ThresholdPolicy:
    """Zero steps at the threshold or above it; below it what `below` decides.

    With a user's own `--speculative-adaptive`, `below` is SGLang's adaptive policy: the threshold is a ceiling above
    it. Steps that the threshold switched off teach it nothing, since they accept no drafts by construction.
    """

    def __init__(self, below: StepPolicy, read_threshold: Callable[[], int], on_change: Callable[[], None]) -> None:
        self._below = below
        self._read = read_threshold
        self._on_change = on_change
        self._last_steps = -1
        self._cuda_graph_bs: list[int] | None = None

    @property
    def threshold(self) -> int:
        """The threshold in force now."""
        return self._read()

    @property
    def candidate_steps(self) -> list[int]:
        """Zero, and every step count that the policy below may choose."""
        return sorted({0, *self._below.candidate_steps})

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Pass the captured batch sizes on and keep them for the zero-step state."""
        self._cuda_graph_bs = sorted(cuda_graph_bs) if cuda_graph_bs else None
        self._below.set_cuda_graph_bs(cuda_graph_bs)

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Decide from this batch and the threshold as it is now; every rank sees the same two numbers."""
        steps = 0 if drafting_stops(self._read(), batch_size) else self._below.get_steps_for_batch(batch_size)
        if steps != self._last_steps:
            self._last_steps = steps
            self._on_change()
        return steps

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Let the policy below learn from steps that it decided."""
        if drafting_stops(self._read(), batch_size):
            return None
        return self._below.on_verify_complete(num_correct_drafts_per_req, batch_size)

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Zero steps may be asked for at any batch size, because the threshold moves."""
        return self._cuda_graph_bs if step == 0 else self._below.cuda_graph_bs_for_step(step)


def install(
    worker: Worker, read: Callable[[], int], on_change: Callable[[], None], controller_class: ControllerClass
) -> ThresholdPolicy:
    """Give the worker an adaptive controller that obeys the threshold; returns its policy.

    A controller that the user asked for stays, with its policy put below the threshold.
    """
    controller = worker.adaptive_controller
    if controller is None:
        below: StepPolicy = ConfiguredSteps(worker.speculative_num_steps)
        # Older controllers take a config path here and build a policy from it; it is replaced either way.
        controller = worker.adaptive_controller = controller_class(worker, None)
    else:
        below = controller.params
    controller.params = policy = ThresholdPolicy(below, read, on_change)
    return policy

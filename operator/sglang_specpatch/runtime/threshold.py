"""The policy that SGLang asks at each decode step: zero steps or drafting, by threshold and probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .ports import ControllerClass, StepPolicy, Worker
from .probing import ProbeSchedule, drafting_stops

_UNDISTURBED_STEPS = 3


class LiveSettings(NamedTuple):
    """Readers of what a live update may change, as it is now."""

    threshold: Callable[[], int]
    probe_permille: Callable[[], int]


class Choice(NamedTuple):
    """What was chosen for one decode step."""

    drafts: bool
    probe: bool


_CHOICES = tuple(tuple(Choice(drafts, probe) for probe in (False, True)) for drafts in (False, True))


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
    """Zero steps at the threshold or above it; below it what `below` decides. Probes turn that round.

    With a user's own `--speculative-adaptive`, `below` is SGLang's adaptive policy: the threshold is a ceiling above
    it. Steps that the threshold or a probe decided teach it nothing: without drafts none are accepted.
    """

    def __init__(self, below: StepPolicy, live: LiveSettings, on_change: Callable[[], None]) -> None:
        self._below = below
        self._read_threshold, self._read_permille = live
        self._on_change = on_change
        self._schedule = ProbeSchedule()
        self._last_steps = -1
        self._undisturbed = 0
        self._latest: Choice | None = None
        self._earlier: Choice | None = None
        self._cuda_graph_bs: list[int] | None = None

    @property
    def threshold(self) -> int:
        """The threshold in force now."""
        return self._read_threshold()

    @property
    def probe_permille(self) -> int:
        """The share of probes in force now."""
        return self._read_permille()

    @property
    def candidate_steps(self) -> list[int]:
        """Zero, and every step count that the policy below may choose."""
        return sorted({0, *self._below.candidate_steps})

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Pass the captured batch sizes on and keep them for the zero-step state."""
        self._cuda_graph_bs = sorted(cuda_graph_bs) if cuda_graph_bs else None
        self._below.set_cuda_graph_bs(cuda_graph_bs)

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Decide from this batch, the batches before it and the live settings: every rank sees the same."""
        threshold = self._read_threshold()
        probe = self._schedule.probes(threshold, self._read_permille(), batch_size)
        stops = drafting_stops(threshold, batch_size)
        steps = self._below.get_steps_for_batch(batch_size) if stops is probe else 0
        self._undisturbed = 0 if stops or probe else self._undisturbed + 1
        # Where the policy below drafts nothing either, a probe of drafting is none.
        self._earlier, self._latest = self._latest, _CHOICES[steps > 0][probe and (steps > 0) is stops]
        if steps != self._last_steps:
            self._last_steps = steps
            self._on_change()
        return steps

    def choice(self, decided_since: int) -> Choice | None:
        """Return what was chosen for the decode step before the last `decided_since` ones; None beyond the last two."""
        if not decided_since:
            return self._latest
        return self._earlier if decided_since == 1 else None

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Let the policy below learn from steps that it decided.

        The step is the last one decided or, where the schedule overlaps, the one before; and the first step of
        drafting after steps without may be one that only prepares it.
        """
        if self._undisturbed < _UNDISTURBED_STEPS:
            return None
        return self._below.on_verify_complete(num_correct_drafts_per_req, batch_size)

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Zero steps may be asked for at any batch size, because the threshold moves."""
        return self._cuda_graph_bs if step == 0 else self._below.cuda_graph_bs_for_step(step)


def install(
    worker: Worker, live: LiveSettings, on_change: Callable[[], None], controller_class: ControllerClass
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
    controller.params = policy = ThresholdPolicy(below, live, on_change)
    return policy

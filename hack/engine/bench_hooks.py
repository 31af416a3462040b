#!/usr/bin/env python3
"""Measure what the hooks of the engine patch cost per decode step, in microseconds of CPU time.

    PYTHONPATH=operator python3 hack/engine/bench_hooks.py [BATCH_SIZE…]

One step is what a scheduler does: note the launch, decide, note the result (with sums published to prometheus_client
at their usual pace). The decision is shown alone, too, with the cost of probing in it. The live settings are constants
here; reading them from SGLang's config comes on top, and so does what the off path does in a step that drafts, on a
server whose attention backend wants lengths on the host. Needs prometheus_client; CPU time of the best of several
rounds, so a busy machine does not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_specpatch.runtime import hooks, probing, threshold
from sglang_specpatch.runtime.offpath_lengths import HostLengths
from sglang_specpatch.runtime.offpath_steps import Resumption

STEPS, ROUNDS = 4000, 7
PERMILLE = 5
LABELS = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


@dataclass
class Request:
    """A running request."""

    finished_reason: object | None = None
    is_retracted: bool = False


class Decode:
    """A decode step."""

    def is_extend(self) -> bool:
        """Never."""
        return False


@dataclass
class Batch:
    """A decode batch."""

    reqs: Sequence[Request]
    forward_mode: Decode
    is_extend_in_batch: bool = False


class Slots(list[int]):
    """Stands for a tensor of request slots on the host."""

    def tolist(self) -> list[int]:
        """Return a copy, as a tensor would."""
        return self[:]


@dataclass
class Lengths:
    """A batch, as far as its lengths go."""

    req_pool_indices_cpu: Slots
    seq_lens_cpu: Slots


@dataclass
class Result:
    """The result of a step that drafted three tokens."""

    num_correct_drafts: int
    speculative_num_draft_tokens: int = 4


@dataclass
class Collector:
    """Stands for SGLang's collector of metrics."""

    labels: dict[str, str]


@dataclass
class Rank:
    """Stands for the scheduler's parts: this rank reports."""

    model_worker: object
    metrics_collector: Collector | None
    current_scheduler_metrics_enabled: bool = True

    @property
    def metrics_reporter(self) -> Rank:
        """Itself."""
        return self


class Worker:
    """Holds the patch."""

    specpatch: hooks.SpecPatch


def microseconds_per_step(batch_size: int, rank: Rank, patch: hooks.SpecPatch, *, overlap: bool = True) -> float:
    """Return the CPU time of the hooks per step at one batch size, best of several rounds.

    With overlap the next step is launched before the result of the last one is handled, as SGLang does by default.
    """
    batch = Batch([Request() for _ in range(batch_size)], Decode())
    result, tokens = Result(batch_size), [[1, 2] for _ in range(batch_size)]
    worker = rank.model_worker

    def begin() -> None:
        patch.clock.idle()
        if overlap:
            hooks.note_forward(worker, batch)

    def step() -> None:
        hooks.note_forward(worker, batch)
        patch.policy.get_steps_for_batch(batch_size)
        hooks.note_result(rank, batch, result, tokens)

    return _best(step, begin)


def microseconds_per_decision(patch: hooks.SpecPatch, batch_size: int) -> float:
    """Return the CPU time of one decision of the policy, probing included."""
    return _best(lambda: patch.policy.get_steps_for_batch(batch_size))


def microseconds_per_probe_decision(batch_size: int) -> float:
    """Return the CPU time of deciding whether one step is a probe."""
    schedule = probing.ProbeSchedule()
    return _best(lambda: schedule.probes(1000, PERMILLE, batch_size))


def microseconds_of_the_off_path(batch_size: int) -> float:
    """Return the CPU time of the off path in a step that drafts: its lengths are not known here, before or after."""
    batch = Lengths(Slots(range(batch_size)), Slots(range(batch_size)))
    steps, lengths = Resumption(), HostLengths(check=False)

    def step() -> None:
        lengths.resolve(batch)
        steps.choose(True, batch.req_pool_indices_cpu)
        lengths.drafted(batch)

    return _best(step)


def _best(step: Callable[[], object], begin: Callable[[], object] = lambda: None) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin()
        began = time.thread_time()
        for _ in range(STEPS):
            step()
        best = min(best, time.thread_time() - began)
    return best / STEPS * 1e6


def scheduler(collector: Collector | None) -> tuple[Rank, hooks.SpecPatch]:
    """Return stand-ins with the patch active at threshold 1000, one step in 200 a probe."""
    live = threshold.LiveSettings(lambda: 1000, lambda: PERMILLE)
    policy = threshold.ThresholdPolicy(threshold.ConfiguredSteps(3), live, lambda: None)
    worker = Worker()
    worker.specpatch = hooks.SpecPatch(policy)
    return Rank(worker, collector), worker.specpatch


def main() -> None:
    """Print a line per batch size."""
    rank, patch = scheduler(Collector(LABELS))
    for batch_size in [int(argument) for argument in sys.argv[1:]] or [1, 8, 32, 64, 128, 256]:
        overlapped = microseconds_per_step(batch_size, rank, patch)
        plain = microseconds_per_step(batch_size, rank, patch, overlap=False)
        decision, probe = microseconds_per_decision(patch, batch_size), microseconds_per_probe_decision(batch_size)
        print(
            f"batch {batch_size:4d}: {overlapped:5.2f} µs a step, without overlap {plain:5.2f} µs; "
            f"of these the decision {decision:5.2f} µs, in it whether to probe {probe:5.2f} µs; "
            f"the off path besides {microseconds_of_the_off_path(batch_size):5.2f} µs"
        )


if __name__ == "__main__":
    main()

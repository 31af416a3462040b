"""Two tensor-parallel ranks of a real, patched SGLang, as processes that get the same turns and share nothing else.

Run by the engine tests in an interpreter that can import SGLang; prints one JSON object. SGLang broadcasts requests
and live updates to every rank before a scheduler turn; so does `play`. Each rank has a clock, a random state and
metrics of its own: none of them may move a decision.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import engine_drive
from engine_drive import FIELD, PROBE, STEPS

TURNS = 1500
ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Turn:
    """One scheduler turn: live updates that arrive before it, then a batch, of no requests when idle."""

    updates: tuple[dict[str, object], ...]
    batch_size: int
    prefills: bool


def turns(seed: int) -> list[Turn]:
    """Return a load that wanders across the thresholds, with updates, prefills and idle turns in between."""
    dice = random.Random(seed)
    batch_size, made = 8, []
    for _ in range(TURNS):
        batch_size = min(40, max(1, batch_size + dice.choice((-3, -1, 0, 0, 0, 0, 1, 3))))
        updates = tuple(update(dice) for _ in range(dice.choice((0,) * 30 + (1, 2))))
        kind = dice.random()
        made.append(Turn(updates, 0 if kind < 0.03 else batch_size, 0.03 <= kind < 0.08))
    return made


def update(dice: random.Random) -> dict[str, object]:
    """Return a live update of one or both settings; some are bad, and must be so on every rank."""
    both = {FIELD: dice.choice((0, 1, 4, 8, 12, 33, -1)), PROBE: dice.choice((0, 20, 200, 500, 501))}
    return {name: both[name] for name in dice.choice(((FIELD,), (PROBE,), (FIELD, PROBE)))}


def rank(number: int, plant: Callable[[Any, int], None], turn_by_turn: Connection) -> None:
    """Be one rank: take turns from the pipe and answer each with what was decided and what is in force."""
    clock = time.perf_counter
    time.perf_counter = lambda: clock() * (1 + number) + 1000 * number
    random.seed(number)
    worker = engine_drive.make_worker(engine_drive.publish())
    engine_drive.prepare_states(worker)
    plant(worker, number)
    scheduler = engine_drive.make_scheduler(worker)
    send = engine_drive.updater(scheduler)
    processor = SimpleNamespace(model_worker=worker, metrics_collector=None)
    processor.metrics_reporter = SimpleNamespace(current_scheduler_metrics_enabled=number == 0)
    scheduler.metrics_reporter.current_scheduler_metrics_enabled = number == 0
    scheduler.metrics_collector = None
    while (turn := turn_by_turn.recv()) is not None:
        taken = [send(update) for update in turn.updates]
        steps = take(worker, scheduler, processor, turn)
        state = engine_drive.read_back(scheduler)
        turn_by_turn.send((steps, taken, state[FIELD], state[PROBE]))


def take(worker: Any, scheduler: Any, processor: Any, turn: Turn) -> int | None:
    """Run one turn as the patched files do; returns the draft steps of a decode step."""
    hooks = engine_drive.load("speculative.specpatch.hooks")
    if not turn.batch_size:
        hooks.note_idle(scheduler)
        return None
    requests = [SimpleNamespace(finished_reason=None, is_retracted=False) for _ in range(turn.batch_size)]
    mode = SimpleNamespace(is_extend=lambda: turn.prefills)
    batch = SimpleNamespace(reqs=requests, forward_mode=mode, is_extend_in_batch=False)
    hooks.note_forward(worker, batch)
    if turn.prefills:
        return None
    steps = engine_drive.decide(worker, turn.batch_size)
    result = SimpleNamespace(speculative_num_draft_tokens=steps + 1, num_correct_drafts=0)
    hooks.note_result(processor, batch, result, [[1]] * turn.batch_size)
    return steps


def play(load: Sequence[Turn], plant: Callable[[Any, int], None]) -> dict[str, Any]:
    """Give both ranks the same turns, one by one, until they differ; returns what was seen."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(2)]
    ranks = [context.Process(target=rank, args=(number, plant, there)) for number, (_, there) in enumerate(pipes)]
    for process in ranks:
        process.start()
    answers: list[Any] = []
    differs = None
    for number, turn in enumerate(load):
        both = [ask(here, turn) for here, _ in pipes]
        if both[0] != both[1]:
            differs = {"turn": number, "answers": both}
            break
        answers.append(both[0])
    for (here, _), process in zip(pipes, ranks, strict=True):
        here.send(None)
        process.join(ANSWER_SECONDS)
    decided = [steps for steps, *_ in answers if steps is not None]
    return {
        "turns": len(answers),
        "differs": differs,
        "drafting": decided.count(STEPS),
        "not drafting": decided.count(0),
        "probes": sum(is_probe(*answer) for answer in zip(load, answers, strict=False)),
        "updates": sum(len(taken) for _, taken, *_ in answers),
        "exit codes": [process.exitcode for process in ranks],
    }


def ask(rank: Connection, turn: Turn) -> Any:
    rank.send(turn)
    if not rank.poll(ANSWER_SECONDS):
        raise TimeoutError(f"a rank does not answer to {turn}")
    return rank.recv()


def is_probe(turn: Turn, answer: tuple[int | None, list[Any], int, int]) -> bool:
    steps, _, threshold, _ = answer
    return steps is not None and (steps == 0) is not (0 < threshold <= turn.batch_size)


def nothing(worker: Any, number: int) -> None:
    """Leave the rank as it is."""


def depend_on_rank(worker: Any, number: int) -> None:
    """Let the threshold of rank 1 be one higher than it was set to."""
    policy = worker.adaptive_controller.params
    read = policy._read_threshold
    policy._read_threshold = lambda: read() + (number if read() else 0)


def depend_on_clock(worker: Any, number: int) -> None:
    """Let probes begin when this rank's clock says so."""
    schedule = worker.adaptive_controller.params._schedule
    probes = schedule.probes
    schedule.probes = lambda threshold, permille, batch_size: probes(
        threshold, permille if int(time.perf_counter() * 1e3) % 2 else 0, batch_size
    )


PLANTS = {"nothing": nothing, "rank": depend_on_rank, "clock": depend_on_clock}


def main() -> dict[str, Any]:
    engine_drive.publish()
    engine_drive.load("speculative.eagle_worker_v2")
    return {name: play(turns(seed=7), plant) for name, plant in PLANTS.items()}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print("\n" + json.dumps(main()), file=sys.stdout)

"""The decode off path of one worker, and the functions through which SGLang's patched files reach it.

A step without drafts runs as a decode step (`offpath_decode`), with the draft model's cache kept for the drafts to
come (`offpath_draft`) and the sequence lengths known on the host (`offpath_lengths`). Whether it can is decided
while the server starts and never changes after: where it can't, such steps stay SGLang's one-token verifies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module

from .engine import logger, setting_reader, settled
from .offpath_decode import TargetDecode, decode_graphs, draft_placement, measured
from .offpath_draft import DraftKeyWriter, DraftLog
from .offpath_lengths import CHECK_VARIABLE, HostLengths
from .offpath_prefill import prefill_rows
from .offpath_steps import Resumption, Step
from .offpath_support import Obstacle, cache_obstacles, config_obstacles
from .offpath_types import Batch, DataType, DraftInput, GraphRunner, Payload, Result, Tensor, Worker
from .settings import OFF_PATH

DECODE = "Decode"
ZERO_STEP = "ZeroStep"

Publish = Callable[[Tensor], None]
"""Takes the lengths after a step, [requests], as soon as they are settled."""

TailOf = Callable[[Batch, Tensor], Tensor]
"""Takes a prefill and the tokens sampled, and returns what follows each request's last row: SGLang's own function."""

Barrier = Callable[[], None]
"""Brings grammars up to what has been sampled before; called when the next logits are there."""


class OffPath:
    """The decode off path of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._resumption = Resumption()
        self._drafting = True
        self._log: DraftLog | None = None
        self._decode: TargetDecode | None = None
        self.lengths = HostLengths(check=os.environ.get(CHECK_VARIABLE) == "1")
        self.target_reads_last = False

    def start(self) -> None:
        """Make ready to serve, once caches and graphs are there."""
        self._decode = TargetDecode(self._worker)
        self._log = _draft_log(self._worker)
        # The lengths belong to its slots, and whoever resolves them has nothing but the batch to find them by.
        self._worker.req_to_token_pool.specpatch_lengths = self.lengths
        # SGLang's draft prefill is a method of its own part of the worker.
        self._worker.draft_worker.specpatch_off_path = self

    def prefill(self, batch: Batch) -> None:
        """Note a prefill about to run: slots of logged rows may be its own or part of its prefix."""
        self.target_reads_last = False
        self.lengths.prefilled(batch)
        self._resumption.prefilled(batch.req_pool_indices_cpu)
        if self._log is not None:
            self._log.flush()

    def prefill_draft(self, batch: Batch, hidden: Tensor, sampled: Tensor, tail_of: TailOf) -> DraftInput | None:
        """Write a prefill's keys and values to the draft model's cache, or return None to run the whole draft model.

        While nothing is drafted, what the draft model would propose behind a prompt is of no use. `hidden` holds the
        target's states, [rows, width], and `sampled` a token for each request.
        """
        if self._drafting or self._log is None or not batch.enable_overlap or batch.forward_mode.is_idle():
            return None
        assert self._decode is not None
        self._log.write(*prefill_rows(batch, tail_of(batch, sampled)), hidden)
        self._resumption.unprepared(batch.req_pool_indices_cpu)
        return self._decode.bonus_only(sampled)

    def step(self, batch: Batch, on_publish: Publish | None, barrier: Barrier | None) -> Result | None:
        """Run one decode step, or return None if drafts are to be made."""
        self.target_reads_last = False
        step = self._choose(batch)
        if step is Step.DRAFT:
            self.lengths.drafted(batch)
            return None
        if step is Step.RESUME:
            # The draft extend below is the one built for single tokens; the next step's choice switches back.
            self._worker.adaptive_controller._activate(0)
        return self._run(batch, on_publish, barrier, extends=step is Step.RESUME or self._log is None)

    def _choose(self, batch: Batch) -> Step:
        drafting = self._drafting = self._worker.speculative_num_steps > 0
        if self._log is None:  # Every step left something to draft from.
            return Step.DRAFT if drafting else Step.DECODE
        return self._resumption.choose(drafting, batch.req_pool_indices_cpu)

    def _run(self, batch: Batch, on_publish: Publish | None, barrier: Barrier | None, extends: bool) -> Result:
        assert self._decode is not None
        result = self._decode.run(batch, barrier)
        self.lengths.grew(batch)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        if extends:
            self._extend(batch, result)
        else:
            assert self._log is not None
            hidden = result.logits_output.hidden_states
            self._log.add(result.next_token_ids, batch.out_cache_loc, batch.seq_lens, hidden)
            self.target_reads_last = True
            if not batch.enable_overlap:
                self._worker._stub_skipped_draft_extend(batch, result)
        return result

    def _extend(self, batch: Batch, result: Result) -> None:
        """Run SGLang's draft extend over the step's token, so that the next step can draft."""
        assert self._decode is not None
        if self._log is not None:
            self._log.flush()
        self._decode.forget_read_done()
        self._decode.needs_device_lengths(result)
        with draft_placement(self._worker):
            self._worker.draft_worker._draft_extend_for_decode(batch, result)


def _draft_log(worker: Worker) -> DraftLog | None:
    """Return the log of the draft model's rows, proven on padding rows, or None if every step has to extend."""
    runner = worker.draft_worker.draft_runner
    layers = getattr(runner.token_to_kv_pool, "layer_num", None)
    if layers != 1:
        logger.info("Off path: a draft model of %s layers; each decode step runs its draft extend", layers)
        return None
    width, dtype = _hidden_shape(worker)
    torch = import_module("torch")
    writer = DraftKeyWriter(worker)
    padding = torch.zeros((2,), dtype=torch.int64, device=worker.device)
    try:
        with torch.no_grad(), draft_placement(worker):
            writer.write(padding, padding, padding, torch.zeros((2, width), dtype=dtype, device=worker.device))
    except Exception as error:
        logger.warning("Off path: each decode step runs its draft extend; writing keys alone failed: %s", error)
        logger.debug("Writing keys alone failed", exc_info=True)
        return None
    log = DraftLog(worker, writer, max_batch=worker.target_worker.model_runner.max_running_requests)
    log.reserve(width, dtype)
    return log


def _hidden_shape(worker: Worker) -> tuple[int, DataType]:
    """Return width and type of what the draft model reads of the target: EAGLE-3 reads several layers."""
    config = worker.target_worker.model_runner.model_config
    draft = worker.draft_worker.draft_runner.model
    parts = getattr(getattr(draft, "model", draft), "num_aux_hidden_states", 3)
    return config.hidden_size * (parts if worker.speculative_algorithm.is_eagle3() else 1), config.dtype


def attach_off_path(worker: Worker, not_placed: str | None = None) -> None:
    """Called after `attach`: choose the path, as far as the server's arguments tell.

    `not_placed` says which hook has no place in this release.
    """
    patch = getattr(worker, "specpatch", None)
    if patch is None:
        return
    wanted = setting_reader(OFF_PATH)()
    if wanted == "zero-step":
        _choose_zero_step(worker, "chosen by --speculative-off-path zero-step", asked=False)
    elif not_placed is not None:
        _choose_zero_step(worker, f"this release has no place for it ({not_placed})", asked=wanted == "decode")
    elif _clear(worker, config_obstacles):
        worker.specpatch_off_path = OffPath(worker)
        patch.off_path, patch.off_path_reason = DECODE, None


def off_path_graphs(worker: Worker, steps: int, base: type[GraphRunner]) -> Callable[..., GraphRunner]:
    """Called where SGLang chooses the graph runner of a state: that of zero steps decodes.

    If its graphs can't be made, the one-token verify's are, and the path is ZeroStep.
    """
    if steps != 0 or _path(worker) is None or not _clear(worker, cache_obstacles):
        return base

    def build(*args: object, **kwargs: object) -> GraphRunner:
        try:
            runner_class = decode_graphs(base)
            return measured(lambda: runner_class(*args, **kwargs), str(worker.device))
        except Exception as error:
            logger.exception("Off path: capturing decode graphs failed")
            _choose_zero_step(worker, f"capturing decode graphs failed ({type(error).__name__}: {error})", asked=True)
            return base(*args, **kwargs)

    return build


def off_path_ready(worker: Worker) -> None:
    """Called when caches, attention backends and graphs are made."""
    path = _path(worker)
    if path is None or not _clear(worker, cache_obstacles):
        return
    path.start()
    logger.info("Off path: %s", DECODE)


def off_path_forward(worker: Worker, batch: Batch) -> None:
    """Called at the start of each forward pass of the worker."""
    path = _path(worker)
    if path is not None and (batch.forward_mode.is_extend() or batch.is_extend_in_batch):
        path.prefill(batch)


def off_path_prefill(
    draft_worker: Worker, batch: Batch, hidden: Tensor, sampled: Tensor, embeddings: Tensor | None, tail_of: TailOf
) -> DraftInput | None:
    """Called before the draft model runs over a prefill; what the next step starts from, or None to let it run."""
    path = _path(draft_worker)
    if path is None or embeddings is not None:
        return None
    return path.prefill_draft(batch, hidden, sampled, tail_of)


def off_path_step(
    worker: Worker,
    batch: Batch,
    on_publish: Publish | None,
    grammar_barrier: Barrier | None = None,
) -> Result | None:
    """Called before a decode step drafts or verifies; the result of a decode step, or None to go on as SGLang does."""
    path = _path(worker)
    if path is None or batch.forward_mode.is_idle():
        return None
    return path.step(batch, on_publish, grammar_barrier)


def target_reads_last(worker: Worker) -> bool:
    """Tell whether the target model was the last to read shared buffers in the step just launched."""
    path = _path(worker)
    return path is not None and path.target_reads_last


def lengths_on_host(batch: Batch) -> bool:
    """Called before SGLang copies lengths from the device: give the batch those known here, or return False."""
    lengths = getattr(batch.req_to_token_pool, "specpatch_lengths", None)
    return lengths is not None and lengths.resolve(batch)


def relays_bonus_only(payload: Payload) -> bool:
    """Tell whether a step leaves its tokens alone to the next one, and nothing to draft from."""
    return payload.topk_p is None


def _path(worker: Worker) -> OffPath | None:
    path = getattr(worker, "specpatch_off_path", None)
    return path if isinstance(path, OffPath) else None


def _clear(worker: Worker, obstacles: Callable[[Worker, Callable[[str], object]], Iterator[Obstacle]]) -> bool:
    """Tell whether nothing stands in the way; if something does, say so and leave such steps to SGLang."""
    insists = setting_reader(OFF_PATH)() == "decode"
    try:
        found = list(obstacles(worker, settled(worker.server_args)))
    except Exception as error:
        logger.exception("Off path: whether a decode step can stand for one without drafts is unknown")
        found = [Obstacle(f"the patch does not understand this configuration ({type(error).__name__}: {error})", True)]
    against = [obstacle for obstacle in found if obstacle.impossible or not insists]
    if not against:
        for obstacle in found:
            logger.warning("Off path: Decode is asked for although it was never proven with %s", obstacle.reason)
        return True
    _choose_zero_step(worker, "not supported with " + ", ".join(obstacle.reason for obstacle in against), insists)
    return False


def _choose_zero_step(worker: Worker, reason: str, asked: bool) -> None:
    worker.specpatch_off_path = None
    worker.specpatch.off_path, worker.specpatch.off_path_reason = ZERO_STEP, reason
    logger.log(
        30 if asked else 20,
        "Off path: %s%s; steps without drafts cost more than on a server without speculation",
        "Decode was asked for but can't be had, " if asked else f"{ZERO_STEP}, ",
        reason,
    )

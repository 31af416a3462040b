"""One decode step of the target model on a speculating server, and the graphs it replays.

The state that SGLang builds for zero draft steps gets decode graphs in place of those that verify one token, so that
switching to it is all that a decode step needs. The step itself is built, run and sampled by SGLang's own functions,
and its result is given the shape of a verify that accepted no draft.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module

from .engine import logger
from .offpath_types import Batch, DraftInput, ForwardBatch, GraphRunner, Library, Result, Tensor, Worker

_READ_DONE_EVENTS = ("war_fastpath_read_done_event", "shared_read_done_event")
_WIDTHS = ("captured_req_width", "num_tokens_per_bs")


def decode_graphs(base: type[GraphRunner]) -> type[GraphRunner]:
    """Return SGLang's graph runner `base` for plain decode: one token a request, with the hidden states of all."""
    modes = import_module("sglang.srt.model_executor.forward_batch_info")

    class DecodeOffGraphRunner(base):  # type: ignore[misc]
        """Captures plain decode where `base`, seeing a speculating server, would capture a verify."""

        def get_spec_info(self, num_tokens: int) -> None:
            """Capture without speculative input."""
            return

        def capture(self) -> None:
            """Capture decode steps; raises RuntimeError if the runner is made for more than one token a request."""
            width = next((getattr(self, name) for name in _WIDTHS if hasattr(self, name)), None)
            if width != 1:
                raise RuntimeError(f"the runner for zero draft steps holds {width} tokens a request, not 1")
            self.capture_forward_mode = modes.ForwardMode.DECODE
            self.capture_hidden_mode = modes.CaptureHiddenMode.FULL
            super().capture()

    return DecodeOffGraphRunner


def measured(build: Callable[[], GraphRunner], device: str) -> GraphRunner:
    """Build the decode graphs and log what they took."""
    torch = import_module("torch")
    started, free = time.perf_counter(), _free_bytes(torch, device)
    runner = build()
    logger.info(
        "Off path: decode graphs for batch sizes %s took %.1f s and %.2f GiB",
        getattr(runner, "capture_bs", "?"),
        time.perf_counter() - started,
        (free - _free_bytes(torch, device)) / 2**30,
    )
    return runner


def _free_bytes(torch: Library, device: str) -> int:
    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else 0


class TargetDecode:
    """Runs decode steps of one worker's target model."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._runner = worker.target_worker.model_runner
        self._torch = import_module("torch")
        self._modes = import_module("sglang.srt.model_executor.forward_batch_info")
        self._result = import_module("sglang.srt.managers.utils").GenerationBatchResult
        self._draft_input = import_module("sglang.srt.speculative.eagle_info").EagleDraftInput
        self._by_keyword = "capture_hidden_mode" in inspect.signature(self._modes.ForwardBatch.init_new).parameters
        self._ranks = import_module("sglang.srt.distributed").get_tp_group()
        self._ones: dict[int, Tensor] = {}

    def run(self, batch: Batch, grammar_barrier: Callable[[], None] | None) -> Result:
        """Run one step of the batch and sample from it.

        Returns SGLang's result of a verify with nothing accepted; the batch keeps its lengths from before the step
        and gets the step's cache slots (`out_cache_loc`), as after a verify.
        """
        forward_batch = self._forward_batch(batch)
        output = self._worker.target_worker.forward_batch_generation(None, forward_batch=forward_batch, is_verify=True)
        if grammar_barrier is not None:
            grammar_barrier()
        logits = output.logits_output
        tokens = self._runner.sample(logits, forward_batch)
        self._agree(tokens, greedy=batch.sampling_info.is_all_greedy)
        if logits.next_token_logprobs is not None:
            logits.next_token_logprobs = logits.next_token_logprobs.reshape(-1, 1)
        return self._result(
            logits_output=logits,
            next_token_ids=tokens,
            can_run_cuda_graph=output.can_run_cuda_graph,
            speculative_num_draft_tokens=1,
            next_draft_input=self.bonus_only(tokens),
            accept_lens=self._host_ones(len(batch.reqs)),
            new_seq_lens=forward_batch.seq_lens,
            routed_experts_output=getattr(output, "routed_experts_output", None),
        )

    def bonus_only(self, tokens: Tensor) -> DraftInput:
        """Return what the next step starts from: each request's last token, and nothing to draft from."""
        return self._draft_input(bonus_tokens=tokens)

    def needs_device_lengths(self, result: Result) -> None:
        """Put the accept lengths on the device, for a draft extend that follows."""
        result.accept_lens = self._torch.ones_like(result.new_seq_lens, dtype=self._torch.int32)

    def forget_read_done(self) -> None:
        """Drop the target's read-done event: what runs next is the last reader of shared buffers, not the target."""
        for name in _READ_DONE_EVENTS:
            if hasattr(self._runner, name):
                setattr(self._runner, name, None)

    def _forward_batch(self, batch: Batch) -> ForwardBatch:
        """Build the step: one token a request, written to the slot behind what the cache holds of it."""
        before, before_cpu, before_sum = batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum
        slots = self._worker.req_to_token_pool.req_to_token[batch.req_pool_indices, before]
        batch.input_ids = batch.spec_info.bonus_tokens.to(self._torch.int64)
        batch.out_cache_loc = slots.to(self._torch.int64)
        batch.spec_info = None
        batch.seq_lens = before + 1
        if before_cpu is not None:
            batch.seq_lens_cpu = before_cpu + 1
            batch.seq_lens_sum = int(before_cpu.sum()) + len(before_cpu)
        try:
            return self._init_new(batch)
        finally:
            batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum = before, before_cpu, before_sum

    def _init_new(self, batch: Batch) -> ForwardBatch:
        hidden = self._modes.CaptureHiddenMode.FULL
        if self._by_keyword:
            return self._modes.ForwardBatch.init_new(
                batch, self._runner, capture_hidden_mode=hidden, return_hidden_states_before_norm=False
            )
        batch.capture_hidden_mode = hidden
        return self._modes.ForwardBatch.init_new(batch, self._runner)

    def _agree(self, tokens: Tensor, greedy: bool) -> None:
        """Make all ranks go on with the same tokens, as a verify does: sampling kernels may differ in the last bit."""
        if self._ranks.world_size > 1 and not greedy:
            self._ranks.broadcast(tokens, src=0)

    def _host_ones(self, count: int) -> Tensor:
        ones = self._ones.get(count)
        if ones is None:
            ones = self._ones[count] = self._torch.ones(count, dtype=self._torch.int32)
        return ones


def draft_placement(worker: Worker) -> AbstractContextManager[object]:
    """Return the contexts that SGLang's worker runs its draft model under."""
    module = import_module(type(worker).__module__)
    draft_worker = worker.draft_worker
    stack = ExitStack()
    stack.enter_context(_draft_parallel(module, draft_worker))
    stack.enter_context(module.speculative_moe_backend_context())
    stack.enter_context(module.speculative_moe_a2a_backend_context())
    return stack


def _draft_parallel(module: Library, draft_worker: Worker) -> AbstractContextManager[object]:
    own = getattr(draft_worker, "draft_tp_context", None)
    if own is not None:
        context: AbstractContextManager[object] = own(draft_worker.draft_runner.tp_group)
        return context
    name = "parallel_layout" if hasattr(draft_worker, "parallel_layout") else "draft_owns_attention"
    placed: AbstractContextManager[object] = module.draft_tp_context(getattr(draft_worker, name))
    return placed

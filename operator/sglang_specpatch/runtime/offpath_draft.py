"""The draft model's keys and values of tokens that were decoded without drafts.

In a draft model of one layer they depend on the target's hidden state and the token that follows, never on
attention, so rows of any steps and any requests can be written together and late: steps log what the rows are made
of, and every few steps one pass of the draft model, cut off where its attention would begin, writes them. They are
written before a prefill could reuse their slots and before drafting goes on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import NoReturn

from .engine import logger
from .offpath_decode import draft_placement
from .offpath_steps import FLUSH_STEPS, LogBook
from .offpath_types import DataType, ForwardBatch, Layer, Runner, Tensor, Worker

WRITTEN_ROWS = 2048
"""Rows written at once: latent attention makes queries as wide as its cache before it writes a key."""

PADDING_SLOT = 0
"""SGLang's caches keep slot 0 for rows that nobody reads."""


class KeysWritten(Exception):
    """The draft model has come to its attention; its keys and values are in the cache."""


class WriteKeysOnly:
    """An attention backend that stores keys and values and ends the forward pass there.

    What it doesn't have comes from the draft model's own backend.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.req_to_token_pool = runner.req_to_token_pool

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner.attn_backend, name)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Layer,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: object,
    ) -> NoReturn:
        """Store `k` and `v`, [rows, heads, size], unless the model did so itself; always raises KeysWritten."""
        if save_kv_cache:
            self._store(layer, forward_batch.out_cache_loc, k, v, kwargs.get("k_rope"))
        raise KeysWritten

    def _store(self, layer: Layer, slots: Tensor, k: Tensor, v: Tensor, k_rope: Tensor | None) -> None:
        """Store as the attention backends do: latent attention may hand its keys over in two parts."""
        if k_rope is not None:
            self.token_to_kv_pool.set_mla_kv_buffer(layer, slots, k, k_rope)
        elif layer.k_scale is None and layer.v_scale is None:
            self.token_to_kv_pool.set_kv_buffer(layer, slots, k, v)
        else:
            self.token_to_kv_pool.set_kv_buffer(layer, slots, k, v, layer.k_scale, layer.v_scale)


class DraftKeyWriter:
    """Runs a one-layer draft model up to the write of its keys and values, for rows in any order."""

    def __init__(self, worker: Worker) -> None:
        self._runner = worker.draft_worker.draft_runner
        self._torch = import_module("torch")
        self._info = import_module("sglang.srt.model_executor.forward_batch_info")
        self._context = import_module("sglang.srt.model_executor.forward_context")
        self._draft_input = import_module("sglang.srt.speculative.eagle_info").EagleDraftInput
        self._backend = WriteKeysOnly(self._runner)

    def write(self, tokens: Tensor, slots: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """Write one row each of int64 `tokens`, `slots` and `positions`, and of `hidden` [rows, width].

        The caller has entered `draft_placement`. Raises RuntimeError if the model ran through without attention.
        """
        for start in range(0, len(tokens), WRITTEN_ROWS):
            rows = slice(start, start + WRITTEN_ROWS)
            self._write(tokens[rows], slots[rows], positions[rows], hidden[rows])

    def _write(self, tokens: Tensor, slots: Tensor, positions: Tensor, hidden: Tensor) -> None:
        batch = self._forward_batch(tokens, slots, positions, hidden)
        try:
            with self._active():
                self._runner.model.forward(tokens, positions, batch)
        except KeysWritten:
            return
        raise RuntimeError("the draft model ended without attention")

    def _active(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self._context.forward_context(
            self._context.ForwardContext(attn_backend=self._backend)
        )
        return context

    def _forward_batch(self, tokens: Tensor, slots: Tensor, positions: Tensor, hidden: Tensor) -> ForwardBatch:
        return self._info.ForwardBatch(
            forward_mode=self._info.ForwardMode.DECODE,
            batch_size=len(tokens),
            input_ids=tokens,
            req_pool_indices=self._torch.zeros_like(tokens),
            seq_lens=positions + 1,
            out_cache_loc=slots,
            seq_lens_sum=None,
            positions=positions,
            spec_algorithm=self._runner.spec_algorithm,
            spec_info=self._draft_input(hidden_states=hidden),
            capture_hidden_mode=self._info.CaptureHiddenMode.NULL,
        )


class DraftLog:
    """The rows of steps not yet written: token, cache slot and position, and the target's hidden state."""

    def __init__(self, worker: Worker, writer: DraftKeyWriter, max_batch: int) -> None:
        self._torch = import_module("torch")
        self._worker = worker
        self._writer = writer
        self._device = worker.device
        self._capacity = FLUSH_STEPS * max_batch
        self._book = LogBook(self._capacity)
        self._ints = self._torch.empty((self._capacity, 3), dtype=self._torch.int64, device=self._device)
        self._hidden: Tensor = None
        cache = worker.draft_worker.draft_runner.token_to_kv_pool
        slots = cache.size + cache.page_size
        self._last_row = self._torch.empty((slots,), dtype=self._torch.int64, device=self._device)

    def reserve(self, width: int, dtype: DataType) -> None:
        """Hold room for hidden states of this width."""
        self._hidden = self._torch.empty((self._capacity, width), dtype=dtype, device=self._device)
        logger.info(
            "Off path: log of %d rows, %.1f MiB",
            self._capacity,
            (self._hidden.numel() * self._hidden.element_size() + self._ints.numel() * 8 + self._last_row.numel() * 8)
            / 2**20,
        )

    def add(self, tokens: Tensor, slots: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """Log one step, and write what is logged when it is due. Hidden states are copied: a graph reuses them."""
        rows = len(hidden)
        if not self._book.fits(rows):
            self.flush()
        if self._hidden is None or self._hidden.shape[1] != hidden.shape[1]:
            self.flush()
            self.reserve(hidden.shape[1], hidden.dtype)
        place = self._book.add(rows)
        self._hidden[place].copy_(hidden)
        columns = tuple(column.to(self._torch.int64) for column in (tokens, slots, positions))
        self._torch.stack(columns, dim=1, out=self._ints[place])
        if self._book.due:
            self.flush()

    def flush(self) -> None:
        """Write all rows to the draft model's cache."""
        rows = self._book.rows
        if rows == 0:
            return
        self._book.clear()
        tokens, slots, positions = self._ints[:rows].t().contiguous().unbind(0)
        with draft_placement(self._worker):
            self._writer.write(tokens, self._newest(slots), positions, self._hidden[:rows])

    def write(self, tokens: Tensor, slots: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """Write rows past the log, as the writer does."""
        self._writer.write(tokens, slots, positions, hidden)

    def _newest(self, slots: Tensor) -> Tensor:
        """Turn away all but the last row of each slot: a slot freed in between may have gone to another request."""
        row = self._torch.arange(len(slots), device=self._device)
        self._last_row.scatter_reduce_(0, slots, row, "amax", include_self=False)
        return self._torch.where(self._last_row[slots] == row, slots, PADDING_SLOT)

"""Sequence lengths that the host knows without asking the device.

A backend that plans on the host needs every length there, and SGLang copies them from the device before each step of
a speculating server, because how many drafts were accepted is known on the device alone. A step without drafts adds
exactly one token to every request, so nothing is left to ask: after a prefill the length is the one prefilled, after
a step without drafts it is one more, and only a speculative step makes it unknown until the next copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from .offpath_types import Batch, Tensor

CHECK_VARIABLE = "SGLANG_SPECPATCH_CHECK_LENGTHS"
"""Set to 1: compare with the device before every step, and stop the server at the first difference."""


class SlotLengths:
    """What is known of the sequence in each request slot: tokens with their keys and values in the cache."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def learn(self, slots: Iterable[int], lengths: Iterable[int]) -> None:
        """Note lengths; whatever was in these slots before is gone."""
        self._known.update(zip(slots, lengths, strict=True))

    def forget(self, slots: Iterable[int]) -> None:
        """Note that the lengths in these slots can't be told from here."""
        for slot in slots:
            self._known.pop(slot, None)

    def lengths(self, slots: Sequence[int]) -> list[int] | None:
        """Return the lengths in these slots, or None if one of them is unknown."""
        known = []
        for slot in slots:
            length = self._known.get(slot)
            if length is None:
                return None
            known.append(length)
        return known


class HostLengths:
    """Follows the batches of one worker, from SGLang's tensors; a batch that stays as it is costs one addition.

    A batch is told by its tensor of slots on the host: SGLang makes a new one whenever requests join or leave.
    """

    def __init__(self, check: bool) -> None:
        self.check = check
        self._slots = SlotLengths()
        self._batch: Tensor = None
        self._next: Tensor = None

    def prefilled(self, batch: Batch) -> None:
        """Note a prefill: its requests are as long as what has been prefilled of them, this chunk included."""
        self._settle()
        slots = batch.req_pool_indices_cpu.tolist()
        if batch.seq_lens_cpu is None:
            self._slots.forget(slots)
        else:
            self._slots.learn(slots, batch.seq_lens_cpu.tolist())

    def drafted(self, batch: Batch) -> None:
        """Note a speculative step: how far its requests come is known on the device alone."""
        self._settle()
        if batch.seq_lens_cpu is not None:  # Else no backend asks for lengths on the host, and nothing is known there.
            self._slots.forget(batch.req_pool_indices_cpu.tolist())

    def grew(self, batch: Batch) -> None:
        """Note a step without drafts of a batch whose lengths before the step are on the host, if they are."""
        if batch.req_pool_indices_cpu is not self._batch:
            self._settle()
        if batch.seq_lens_cpu is not None:
            self._batch = batch.req_pool_indices_cpu
            self._next = batch.seq_lens_cpu + 1

    def resolve(self, batch: Batch) -> bool:
        """Give the batch its lengths before the next step, if all are known.

        The lengths on the device are the batch's already. Raises RuntimeError, where checking is on, if they differ.
        """
        if batch.req_pool_indices_cpu is self._batch:
            lengths = self._next
        else:
            self._settle()
            known = self._slots.lengths(batch.req_pool_indices_cpu.tolist())
            if known is None:
                return False
            lengths = import_module("torch").tensor(known, dtype=batch.req_pool_indices_cpu.dtype)
        if self.check:
            self._compare(batch, lengths)
        batch.seq_lens_cpu = lengths
        batch.seq_lens_sum = int(lengths.sum())
        return True

    def _settle(self) -> None:
        if self._batch is not None:
            self._slots.learn(self._batch.tolist(), self._next.tolist())
            self._batch = self._next = None

    @staticmethod
    def _compare(batch: Batch, lengths: Tensor) -> None:
        slots, device, host = batch.req_pool_indices_cpu.tolist(), batch.seq_lens.tolist(), lengths.tolist()
        if device != host:
            rows = [row for row, pair in enumerate(zip(device, host, strict=True)) if pair[0] != pair[1]]
            raise RuntimeError(
                f"{CHECK_VARIABLE}: host and device differ in {len(rows)} of {len(host)} requests: request slots "
                f"{[slots[row] for row in rows]}, host {[host[row] for row in rows]}, "
                f"device {[device[row] for row in rows]}"
            )

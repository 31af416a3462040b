"""Two bookkeeping kernels in plain torch: in triton's interpreter they would take most of a server's time.

Each takes the place of the kernel of the same name and is launched like it. Whatever is not the plain case (chains,
tables of single slots, no window) goes to the kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Launch = Callable[..., None]


class Replaced:
    """A kernel with a reference in front of it; `plain_rest` are the values of further arguments it covers."""

    def __init__(self, kernel: Any, reference: Callable[..., bool]) -> None:
        self._kernel = kernel
        self._reference = reference

    def __getitem__(self, grid: tuple[int, ...]) -> Launch:
        def launch(*arguments: Any, **named: Any) -> None:
            if named or not self._reference(grid, *arguments):
                self._kernel[grid](*arguments, **named)

        return launch


def generate_draft_decode_kv_indices(kernel: Any) -> Replaced:
    """Replace the kernel that lists the slots each draft step reads."""
    return Replaced(kernel, _draft_slots)


def create_flashinfer_kv_indices_triton(kernel: Any) -> Replaced:
    """Replace the kernel that lists the slots of each request."""
    return Replaced(kernel, _request_slots)


def _draft_slots(
    grid: tuple[int, ...],
    requests: Tensor,
    table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    ends: Tensor,
    positions: Tensor,
    *rest: Any,
) -> bool:
    """Step s of each request reads its first length + s + 1 slots; `ends` sums up positions, as the kernel does."""
    steps, count, topk = grid
    width, slots_stride, ends_stride = rest[:3]
    if topk != 1 or width != table.shape[1] or any(rest[7:9]):
        return False
    rows, sizes, sums = requests.tolist(), lengths.tolist(), positions.cumsum(0).tolist()
    flat_slots, flat_ends = slots.view(-1), ends.view(-1)
    for step in range(steps):
        at = step * slots_stride
        for row in range(count):
            size = sizes[row] + step + 1
            flat_slots[at : at + size] = table[rows[row], :size].to(slots.dtype)
            at += size
            flat_ends[step * ends_stride + row + 1] = sums[row] + (row + 1) * (step + 1)
    return True


def _request_slots(
    grid: tuple[int, ...],
    table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    ends: Tensor,
    starts: Tensor | None,
    slots: Tensor,
    width: int,
    *rest: Any,
) -> bool:
    """Request i gets slots starts[i] … starts[i] + lengths[i] - 1 of its row, at ends[i] of the list."""
    if width != table.shape[1] or rest:
        return False
    rows, sizes, places = requests.tolist(), lengths.tolist(), ends.tolist()
    first = starts.tolist() if starts is not None else [0] * len(rows)
    for row, size, at, start in zip(rows, sizes, places, first, strict=False):
        slots[at : at + size] = table[row, start : start + size].to(slots.dtype)
    return True

"""Lengths on the host: what stays known through joins, ends and speculative steps, and what a wrong one does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_specpatch.runtime import offpath_lengths
from sglang_specpatch.runtime.offpath_lengths import HostLengths, SlotLengths


class Vector:
    """The few things of an integer tensor that lengths need."""

    dtype = "int64"

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._values = list(values)

    def __add__(self, more: int) -> Vector:
        return Vector(value + more for value in self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self._values == other._values

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def tolist(self) -> list[int]:
        """Return plain numbers."""
        return list(self._values)

    def sum(self) -> int:
        """Add up."""
        return sum(self._values)


@pytest.fixture(autouse=True)
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tensors of lists without torch."""
    stand_in = SimpleNamespace(tensor=lambda values, dtype: Vector(values))
    monkeypatch.setattr(offpath_lengths, "import_module", lambda name: stand_in)


@dataclass
class Requests:
    """A scheduler in small: request slots with true lengths, and the batch that decodes them."""

    host: HostLengths
    true: dict[int, int] = field(default_factory=dict)
    running: Vector = field(default_factory=Vector)

    def batch(self, slots: Vector, lengths: Vector | None) -> Any:
        device = Vector(self.true[slot] for slot in slots)
        return SimpleNamespace(req_pool_indices_cpu=slots, seq_lens_cpu=lengths, seq_lens=device, seq_lens_sum=None)

    def prefill(self, *joining: tuple[int, int]) -> None:
        self.true.update(joining)
        slots = Vector(slot for slot, _ in joining)
        self.host.prefilled(self.batch(slots, Vector(length for _, length in joining)))
        self.running = Vector([*self.running, *slots])

    def leave(self, *slots: int) -> None:
        self.running = Vector(slot for slot in self.running if slot not in slots)

    def step(self, tokens: int | None = None) -> bool:
        """Run one step and tell whether the host knew; `tokens` per request for a speculative one."""
        batch = self.batch(self.running, None)
        knew = self.host.resolve(batch)
        if not knew:
            batch.seq_lens_cpu = batch.seq_lens
        assert batch.seq_lens_cpu == batch.seq_lens
        assert not knew or batch.seq_lens_sum == sum(batch.seq_lens)
        self.host.grew(batch) if tokens is None else self.host.drafted(batch)
        for slot in self.running:
            self.true[slot] += tokens or 1
        return knew


@pytest.fixture
def requests() -> Requests:
    return Requests(HostLengths(check=True))


def test_steps_without_drafts_never_ask_the_device(requests: Requests) -> None:
    requests.prefill((3, 10), (5, 7))
    assert all(requests.step() for _ in range(20))


def test_joins_and_ends_keep_lengths_known(requests: Requests) -> None:
    requests.prefill((1, 10), (2, 7))
    assert requests.step()
    requests.prefill((4, 100))
    assert requests.step()
    assert requests.step()
    requests.leave(1)
    assert requests.step()
    requests.prefill((1, 33))  # The slot of one that ended goes to another, with a length of its own.
    assert requests.step()
    requests.leave(2, 4)
    assert requests.step()


def test_a_chunked_prefill_counts_what_has_been_prefilled(requests: Requests) -> None:
    requests.prefill((1, 10))
    requests.step()
    requests.host.prefilled(requests.batch(Vector([1]), Vector([16])))
    requests.true[1] = 16
    requests.running = Vector([1])
    assert requests.step()


def test_a_speculative_step_asks_once_and_is_known_after(requests: Requests) -> None:
    requests.prefill((1, 10), (2, 7))
    assert requests.step(tokens=3)  # Known from the prefill, unknown after.
    assert not requests.step()
    assert requests.step()
    requests.step(tokens=2)
    requests.prefill((7, 5))
    assert not requests.step()  # Known of the one that joined, not of the others.
    requests.leave(1)
    assert requests.step()


def test_a_wrong_length_stops_the_server_where_checking_is_on(requests: Requests) -> None:
    requests.prefill((1, 10), (2, 7))
    requests.step()
    requests.true[2] += 1
    with pytest.raises(RuntimeError, match=r"differ in 1 of 2 requests: request slots \[2\], host \[8\], device \[9\]"):
        requests.step()


def test_a_backend_that_asks_for_nothing_costs_nothing() -> None:
    host = HostLengths(check=False)
    batch = SimpleNamespace(req_pool_indices_cpu=Vector([1]), seq_lens_cpu=None)
    host.drafted(batch)
    host.grew(batch)
    assert not host.resolve(batch)


def test_one_unknown_slot_makes_a_batch_unknown() -> None:
    slots = SlotLengths()
    slots.learn([1, 2], [5, 6])
    assert slots.lengths([2, 1]) == [6, 5]
    slots.forget([1, 9])
    assert slots.lengths([2]) == [6]
    assert slots.lengths([1, 2]) is None

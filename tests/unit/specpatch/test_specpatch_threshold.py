"""The value rule and the decision, at every boundary and on every rank."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_specpatch.runtime import threshold
from sglang_specpatch.runtime.ports import Controller, StepPolicy

STEPS = 3


@dataclass
class Live:
    """A threshold that can be changed, as the config of a scheduler process."""

    value: int = 0
    changes: int = 0

    def read(self) -> int:
        return self.value

    def note_change(self) -> None:
        self.changes += 1

    def policy(self) -> threshold.ThresholdPolicy:
        return threshold.ThresholdPolicy(threshold.ConfiguredSteps(STEPS), self.read, self.note_change)


@pytest.mark.parametrize("value", [0, 1, 8, 1_000_000])
def test_a_whole_number_in_range_is_a_threshold(value: int) -> None:
    assert threshold.refusal(value) is None
    assert threshold.parse_threshold(str(value)) == value


@pytest.mark.parametrize("value", [3.0, "3", True, False, None, [], {}, -1, 1_000_001, 10**9, float("nan")])
def test_anything_else_is_refused_with_a_sentence(value: object) -> None:
    sentence = threshold.refusal(value)
    assert sentence is not None
    assert sentence.startswith(threshold.FIELD)


@pytest.mark.parametrize(
    "text", ["", "eight", "-1", "+1", "1.0", "1e3", " 8", "8 ", "1_0", "٣", "0x8", "1000001", "9" * 400]
)
def test_the_command_line_refuses_what_is_no_plain_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number from 0 to 1000000"):
        threshold.parse_threshold(text)


@given(st.integers(0, 50), st.integers(1, 60))
def test_drafting_stops_from_the_threshold_on(limit: int, batch_size: int) -> None:
    live = Live(limit)
    expected = STEPS if limit == 0 or batch_size < limit else 0
    assert live.policy().get_steps_for_batch(batch_size) == expected


def test_one_never_drafts_and_zero_always_does() -> None:
    never, always = Live(1).policy(), Live(0).policy()
    for batch_size in (1, 2, 1000):
        assert never.get_steps_for_batch(batch_size) == 0
        assert always.get_steps_for_batch(batch_size) == STEPS


def test_a_live_change_counts_from_the_next_step() -> None:
    live = Live(0)
    policy = live.policy()
    seen = []
    for live.value in (0, 9, 8, 7, 0, 1, 8):
        seen.append(policy.get_steps_for_batch(8))
    assert seen == [3, 3, 0, 0, 3, 0, 0]
    assert live.changes == 4


@given(st.lists(st.tuples(st.integers(1, 40), st.one_of(st.none(), st.integers(0, 40))), max_size=60))
def test_two_ranks_that_see_the_same_batches_and_updates_decide_alike(turns: list[tuple[int, int | None]]) -> None:
    ranks = [Live(4), Live(4)]
    policies = [rank.policy() for rank in ranks]
    for batch_size, update in turns:
        if update is not None:
            for rank in ranks:
                rank.value = update
        decisions = {policy.get_steps_for_batch(batch_size) for policy in policies}
        assert len(decisions) == 1


def test_states_are_prepared_for_zero_and_the_configured_steps_at_all_captured_sizes() -> None:
    policy = Live(8).policy()
    assert policy.candidate_steps == [0, STEPS]
    policy.set_cuda_graph_bs([4, 1, 2])
    assert policy.cuda_graph_bs_for_step(0) == [1, 2, 4]
    assert policy.cuda_graph_bs_for_step(STEPS) == [1, 2, 4]
    policy.set_cuda_graph_bs(None)
    assert policy.cuda_graph_bs_for_step(0) is None
    assert policy.cuda_graph_bs_for_step(STEPS) is None


def test_acceptance_does_not_move_the_steps() -> None:
    policy = Live(8).policy()
    for _ in range(100):
        assert policy.on_verify_complete([0, 0, 0], 3) is None
    assert policy.get_steps_for_batch(3) == STEPS


@dataclass
class Adaptive:
    """A policy of the user's own, which learns."""

    steps: int = 5
    candidate_steps: list[int] = field(default_factory=lambda: [1, 5])
    learned: list[tuple[list[int], int]] = field(default_factory=list)
    graphs: list[int] | None = None

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self.graphs = cuda_graph_bs

    def get_steps_for_batch(self, batch_size: int) -> int:
        return self.steps

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        self.learned.append((num_correct_drafts_per_req, batch_size))
        return 1

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        return [1] if step == 5 else []


def test_a_users_adaptive_policy_decides_below_the_threshold_only() -> None:
    live, adaptive = Live(4), Adaptive()
    policy = threshold.ThresholdPolicy(adaptive, live.read, live.note_change)
    assert policy.candidate_steps == [0, 1, 5]
    assert [policy.get_steps_for_batch(size) for size in (1, 3, 4, 9)] == [5, 5, 0, 0]
    policy.set_cuda_graph_bs([2, 1])
    assert adaptive.graphs == [2, 1]
    assert [policy.cuda_graph_bs_for_step(step) for step in (0, 1, 5)] == [[1, 2], [], [1]]


def test_steps_that_were_switched_off_teach_the_users_policy_nothing() -> None:
    live, adaptive = Live(4), Adaptive()
    policy = threshold.ThresholdPolicy(adaptive, live.read, live.note_change)
    assert policy.on_verify_complete([0, 0, 0, 0], 4) is None
    assert adaptive.learned == []
    assert policy.on_verify_complete([2, 1, 3], 3) == 1
    assert adaptive.learned == [([2, 1, 3], 3)]


@dataclass
class HeldController:
    """A controller that only holds its policy."""

    params: StepPolicy


@dataclass
class HeldWorker:
    """A worker that only holds its controller."""

    adaptive_controller: Controller | None
    speculative_num_steps: int = STEPS
    server_args: object = None
    specpatch: object = None
    specpatch_inactive_reason: str = ""


@pytest.mark.parametrize("own", [None, Adaptive()])
def test_a_worker_gets_a_controller_or_keeps_its_own(own: Adaptive | None) -> None:
    live = Live(4)
    kept = HeldController(own) if own is not None else None
    worker = HeldWorker(kept)
    made: list[tuple[object, object]] = []

    def controller_class(worker: object, policy: None) -> Controller:
        made.append((worker, policy))
        return HeldController(Adaptive())

    policy = threshold.install(worker, live.read, live.note_change, controller_class)
    assert worker.adaptive_controller is not None
    assert worker.adaptive_controller.params is policy
    assert made == ([] if own else [(worker, None)])
    assert (worker.adaptive_controller is kept) == (own is not None)
    assert policy.get_steps_for_batch(1) == (5 if own else STEPS)

"""The decision, at every boundary and on every rank."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_specpatch.runtime import threshold
from sglang_specpatch.runtime.ports import Controller, StepPolicy

STEPS = 3


@dataclass
class Live:
    """Settings that can be changed, as the config of a scheduler process."""

    value: int = 0
    permille: int = 0
    changes: int = 0

    def note_change(self) -> None:
        self.changes += 1

    def policy(self, below: StepPolicy | None = None) -> threshold.ThresholdPolicy:
        live = threshold.LiveSettings(lambda: self.value, lambda: self.permille)
        return threshold.ThresholdPolicy(below or threshold.ConfiguredSteps(STEPS), live, self.note_change)


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


updates = st.none() | st.tuples(st.integers(0, 40), st.sampled_from([0, 5, 499, 500]))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50), updates), max_size=20))
def test_two_ranks_that_see_the_same_batches_and_updates_decide_alike(
    turns: list[tuple[int, int, tuple[int, int] | None]],
) -> None:
    ranks = [Live(4), Live(4)]
    policies = [rank.policy() for rank in ranks]
    for batch_size, steps, update in turns:
        if update is not None:
            for rank in ranks:
                rank.value, rank.permille = update
        for _ in range(steps):
            decisions = {policy.get_steps_for_batch(batch_size) for policy in policies}
            assert len(decisions) == 1


@given(st.integers(0, 40), st.lists(st.integers(1, 60), max_size=200))
def test_a_share_of_nought_is_the_threshold_alone(limit: int, batch_sizes: list[int]) -> None:
    policy = Live(limit, 0).policy()
    for batch_size in batch_sizes:
        assert policy.get_steps_for_batch(batch_size) == (STEPS if limit == 0 or batch_size < limit else 0)


@pytest.mark.parametrize(("limit", "usual", "other"), [(0, STEPS, 0), (1, 0, STEPS), (8, 0, STEPS), (9, STEPS, 0)])
def test_a_probe_runs_the_other_mode(limit: int, usual: int, other: int) -> None:
    policy = Live(limit, 500).policy()
    turns = [policy.get_steps_for_batch(8) for _ in range(16)]
    assert turns == [usual] * 7 + [other] * 4 + [usual] * 4 + [other]


def test_what_was_chosen_is_told_for_the_last_two_steps() -> None:
    live = Live(9, 500)
    policy = live.policy()
    assert [policy.choice(number) for number in range(3)] == [None, None, None]
    for _ in range(16):
        policy.get_steps_for_batch(8)
    assert [policy.choice(number) for number in range(3)] == [(False, True), (True, False), None]
    live.value = 8
    policy.get_steps_for_batch(8)
    assert [policy.choice(number) for number in range(2)] == [(False, False), (False, True)]


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
    adaptive = Adaptive()
    policy = Live(4).policy(adaptive)
    assert policy.candidate_steps == [0, 1, 5]
    assert [policy.get_steps_for_batch(size) for size in (1, 3, 4, 9)] == [5, 5, 0, 0]
    policy.set_cuda_graph_bs([2, 1])
    assert adaptive.graphs == [2, 1]
    assert [policy.cuda_graph_bs_for_step(step) for step in (0, 1, 5)] == [[1, 2], [], [1]]


def _learned(live: Live, batch_sizes: list[int], *, overlap: bool) -> list[int]:
    """Play steps, results one turn late with overlap; returns which steps taught, by number."""
    adaptive = Adaptive()
    policy = live.policy(adaptive)
    for number, batch_size in enumerate(batch_sizes):
        policy.get_steps_for_batch(batch_size)
        done = number - overlap
        if done >= 0:
            policy.on_verify_complete([done], batch_sizes[done])
    return [numbers[0] for numbers, _ in adaptive.learned]


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_that_were_switched_off_teach_the_users_policy_nothing(overlap: bool) -> None:
    batch_sizes = [3] * 6 + [4] * 5 + [3] * 6
    learned = _learned(Live(4), batch_sizes, overlap=overlap)
    assert {batch_sizes[number] for number in learned} == {3}
    assert 11 not in learned, "the first step after it may have run without drafts, to prepare the next"
    assert set(range(3, 5)) | set(range(13, 15)) <= set(learned)


@pytest.mark.parametrize(("limit", "overlap"), [(9, False), (9, True), (8, False), (8, True)])
def test_probes_teach_the_users_policy_nothing(limit: int, overlap: bool) -> None:
    learned = _learned(Live(limit, 500), [8] * 40, overlap=overlap)
    probes = {step for begin in range(7, 40, 8) for step in range(begin, begin + 4)}
    assert not probes & set(learned)
    assert bool(learned) is (limit == 9)


def test_a_probe_of_drafting_drafts_as_the_users_policy_says() -> None:
    policy = Live(8, 500).policy(Adaptive(steps=5))
    assert {policy.get_steps_for_batch(8) for _ in range(32)} == {0, 5}
    none = Live(8, 500).policy(Adaptive(steps=0))
    for _ in range(32):
        assert none.get_steps_for_batch(8) == 0
        assert none.choice(0) == (False, False), "no probe where the policy below drafts nothing either"


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

    settings = threshold.LiveSettings(lambda: live.value, lambda: live.permille)
    policy = threshold.install(worker, settings, live.note_change, controller_class)
    assert worker.adaptive_controller is not None
    assert worker.adaptive_controller.params is policy
    assert made == ([] if own else [(worker, None)])
    assert (worker.adaptive_controller is kept) == (own is not None)
    assert policy.get_steps_for_batch(1) == (5 if own else STEPS)

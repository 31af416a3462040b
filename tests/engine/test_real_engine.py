"""A real, patched SGLang server on a CPU says what one without speculation says, whatever the threshold does.

Greedy outputs and log-probabilities are compared, since a wrong position, cache slot, length or mask changes them.
Two servers run at a time: the one without speculation answers first and goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cpu_engine import Answer, CpuEngine, acceptance, plan, scenes
from cpu_engine.client import THRESHOLD
from cpu_engine.compare import same
from cpu_engine.edits import PLANTED_POSITION
from cpu_engine.engine import DRAFT_STEPS
from real_sglang import RELEASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SWITCH = "CPU_ENGINE_PLANTED"
CHECKED = {"SGLANG_SPECPATCH_CHECK_LENGTHS": "1"}
CROWDED = (
    "--max-total-tokens", str(scenes.CROWDED), "--chunked-prefill-size", "16", "--schedule-conservativeness", "0.1",
)  # fmt: skip
PUBLISHED_SECONDS = 2.5
"""An idle server takes a turn every second, and publishes sums that are half a second old."""
STEPS = "sglang:spec_mode_steps_total"


@dataclass(frozen=True)
class Reference:
    """What the server without speculation said."""

    many: list[Answer]
    continued: list[Answer]
    coming_and_going: list[Answer]
    crowd: list[Answer]
    stopping: list[Answer]
    stopped: list[Answer]
    shaped: list[Answer]
    long: Answer

    @classmethod
    def of(cls, engine: CpuEngine) -> Reference:
        """Ask it everything."""
        many, stopping = engine.generate(scenes.MANY), engine.generate(scenes.STOPPING)
        return cls(
            many=many,
            continued=engine.generate(scenes.continued(scenes.MANY, many)),
            coming_and_going=engine.generate(scenes.COMING_AND_GOING),
            crowd=engine.generate(scenes.CROWD),
            stopping=stopping,
            stopped=engine.generate(scenes.stopped(scenes.STOPPING, stopping)),
            shaped=[engine.generate([prompt])[0] for prompt in scenes.SHAPED],
            long=engine.generate([scenes.LONG])[0],
        )


@dataclass(frozen=True)
class Stage:
    """A speculating server, what is expected of it, and the switch of its planted error."""

    engine: CpuEngine
    expected: Reference
    switch: Path


@pytest.fixture(scope="module", params=plan.of_this_run(RELEASES))
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def stage(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Page size 1; the server without speculation starts beside it."""
    switch = tmp_path_factory.mktemp("switch") / "on"
    variables = {**CHECKED, SWITCH: str(switch)}
    with CpuEngine(release, variables=variables, faults=[PLANTED_POSITION]).starting() as engine:
        with CpuEngine(release, speculating=False) as plain:
            expected = Reference.of(plain)
        yield Stage(engine.wait(), expected, switch)


@pytest.fixture(scope="module")
def paged(release: str, stage: Stage) -> Iterator[CpuEngine]:
    """Pages of 16 slots, few of them, prefills in chunks of 16 tokens; off by SGLang's own zero-step state."""
    flags = (*CROWDED, "--page-size", "16", "--speculative-off-path", "zero-step")
    with CpuEngine(release, *flags, api_key="a-key") as engine:
        yield engine


def test_the_reference_says_something(stage: Stage) -> None:
    """Outputs that repeat themselves or don't depend on the prompt would be equal by chance."""
    assert all(len(set(answer.tokens)) > len(answer.tokens) // 2 for answer in stage.expected.many)
    assert len({answer.tokens for answer in stage.expected.many}) == len(scenes.MANY)


def test_always_drafting(stage: Stage) -> None:
    stage.engine.set_threshold(0)
    answers = stage.engine.generate(scenes.MANY)
    same(answers, stage.expected.many)
    assert acceptance(answers) > 1.5, "the draft model guesses nothing: accepted drafts are not tested"


def test_never_drafting(stage: Stage) -> None:
    stage.engine.set_threshold(1)
    drafted = stage.engine.metric(STEPS, mode="on")
    answers = stage.engine.generate(scenes.MANY)
    same(answers, stage.expected.many)
    assert acceptance(answers) == 1.0
    assert stage.engine.metric(STEPS, mode="on") == drafted


def test_toggled_every_few_steps(stage: Stage) -> None:
    before = stage.engine.metric("sglang:spec_mode_transitions_total")
    with stage.engine.toggled() as values:
        answers = stage.engine.generate(scenes.MANY)
    same(answers, stage.expected.many)
    assert len(values) >= 4
    assert stage.engine.metric("sglang:spec_mode_transitions_total") >= before + 3
    assert 1.0 < acceptance(answers) < 2.5


def test_threshold_crossed_by_requests_that_join_and_leave(stage: Stage) -> None:
    stage.engine.set_threshold(5)
    before = steps_by_mode(stage.engine)
    same(stage.engine.generate(scenes.COMING_AND_GOING), stage.expected.coming_and_going)
    done = {key: value - before.get(key, 0) for key, value in steps_by_mode(stage.engine).items()}
    smaller = {"1", "2", "3-4"}
    assert sum(value for (mode, size), value in done.items() if mode == "off" and size in smaller) == 0
    assert sum(value for (mode, size), value in done.items() if mode == "on" and size not in smaller) == 0


def steps_by_mode(engine: CpuEngine) -> dict[tuple[str, str], float]:
    samples = ((dict(labels), value) for labels, value in engine.samples(STEPS).items())
    return {(labels["mode"], labels["batch_size"]): value for labels, value in samples}


def test_cached_prefixes_of_the_other_mode(stage: Stage) -> None:
    """Outputs are the same, and drafts as good: the draft model's cache is kept right while it does not draft."""
    made: dict[tuple[int, int], float] = {}
    for before, threshold in ((0, 0), (1, 0), (0, 1)):
        stage.engine.flush()
        stage.engine.set_threshold(before)
        said = stage.engine.generate(scenes.MANY)
        stage.engine.set_threshold(threshold)
        # The step that resumes drafting makes one token.
        stage.engine.generate([scenes.SHORT])
        answers = stage.engine.generate(scenes.continued(scenes.MANY, said))
        same(answers, stage.expected.continued)
        assert all(
            answer.cached_tokens > len(prompt.tokens) for answer, prompt in zip(answers, scenes.MANY, strict=True)
        ), "the answers' own tokens were not taken from the cache"
        made[before, threshold] = acceptance(answers)
    assert made[1, 0] == pytest.approx(made[0, 0], rel=0.01)


def test_stop_tokens_and_stop_strings(stage: Stage) -> None:
    told = scenes.stopped(scenes.STOPPING, stage.expected.stopping)
    for threshold in (0, 1):
        stage.engine.set_threshold(threshold)
        answers = stage.engine.generate(told)
        same(answers, stage.expected.stopped)
        assert {answer.finish for answer in answers} == {"stop"}


def test_changed_logits(stage: Stage) -> None:
    """One at a time: which tokens a penalty has seen already depends on what else is scheduled between two steps."""
    stage.engine.set_threshold(1)
    same([stage.engine.generate([prompt])[0] for prompt in scenes.SHAPED], stage.expected.shaped)


def test_abort_in_the_middle(stage: Stage) -> None:
    for threshold in (0, 1):
        stage.engine.set_threshold(threshold)
        (long,) = stage.engine.begin([scenes.LONG])
        for _ in range(8):
            stage.engine.internal_states()
        others = stage.engine.begin(scenes.MANY[:3])
        for _ in range(4):
            stage.engine.internal_states()
        stage.engine.abort("long")
        same([other.result(300) for other in others], stage.expected.many[:3])
        aborted = long.result(300)
        assert aborted.finish == "abort"
        assert 0 < len(aborted.tokens) < scenes.LONG.new_tokens
        assert aborted.tokens == stage.expected.long.tokens[: len(aborted.tokens)]


def test_counters_are_what_the_client_saw(stage: Stage) -> None:
    """One request alone: the first steps stand next to the prefill, and the last may have been begun in vain."""
    for threshold, mode in ((0, "on"), (1, "off")):
        stage.engine.set_threshold(threshold)
        before = counted(stage.engine, mode)
        (answer,) = stage.engine.generate([scenes.LONG])
        time.sleep(PUBLISHED_SECONDS)
        steps, tokens, requests = (now - then for now, then in zip(counted(stage.engine, mode), before, strict=True))
        assert answer.verify_steps - 3 <= steps <= answer.verify_steps + 1
        assert requests == steps
        assert 0 <= len(answer.tokens) - 1 - tokens <= 3 * (DRAFT_STEPS + 1)
        if mode == "off":
            assert 0 <= steps - tokens <= 1


def counted(engine: CpuEngine, mode: str) -> list[float]:
    """Return steps, tokens and requests of a mode."""
    return [engine.metric(f"sglang:spec_mode_{what}_total", mode=mode) for what in ("steps", "tokens", "requests")]


def test_pages_chunks_and_retractions(paged: CpuEngine, stage: Stage) -> None:
    paged.set_threshold(0)
    with paged.toggled(hold_turns=6):
        same(paged.generate(scenes.CROWD), stage.expected.crowd)
    assert paged.metric("sglang:num_retracted_requests_total") > 0
    assert "retract" in paged.log().lower()


def test_an_api_key_is_asked_for(paged: CpuEngine) -> None:
    for key in ("", "another-key"):
        assert paged.try_update({THRESHOLD: 7}, key).status_code == 401
    paged.set_threshold(0)


@pytest.mark.parametrize("threshold", [0, 1, 5])
def test_pages(paged: CpuEngine, stage: Stage, threshold: int) -> None:
    paged.set_threshold(threshold)
    said = paged.generate(scenes.MANY)
    same(said, stage.expected.many)
    answers = paged.generate(scenes.continued(scenes.MANY, said))
    same(answers, stage.expected.continued)
    assert sum(answer.cached_tokens for answer in answers) > 0


@pytest.mark.parametrize("threshold", [0, 1])
def test_a_position_that_is_off_by_one_is_noticed(stage: Stage, threshold: int) -> None:
    """The comparison of this file fails when decode steps go wrong in either mode. Runs last: the cache is spoiled."""
    stage.engine.flush()
    stage.engine.set_threshold(threshold)
    stage.switch.touch()
    try:
        answers = stage.engine.generate(scenes.MANY)
    finally:
        stage.switch.unlink()
        stage.engine.flush()
    with pytest.raises(AssertionError):
        same(answers, stage.expected.many)
    assert not any(mine.tokens == theirs.tokens for mine, theirs in zip(answers, stage.expected.many, strict=True))

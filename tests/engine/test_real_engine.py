"""A real, patched SGLang server on a CPU says what one without speculation says, whatever the threshold does.

Greedy outputs and log-probabilities are compared, since a wrong position, cache slot, length or mask changes them.
SGLang asks for lengths on the host, as with flashinfer, and those known there are compared with the device's before
every step. Two servers run at a time: the one without speculation answers first and goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from cpu_engine import Answer, CpuEngine, acceptance, plan, scenes
from cpu_engine.client import PROBE_PERMILLE, THRESHOLD
from cpu_engine.compare import Reference, same
from cpu_engine.engine import DRAFT_STEPS
from cpu_engine.faults import LENGTHS_ON_THE_HOST, StepNotes, Switch
from real_sglang import RELEASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PUBLISHED_SECONDS = 2.5
"""An idle server takes a turn every second, and publishes sums that are half a second old."""
CRASH_SECONDS = 120
STEPS = "sglang:spec_mode_steps_total"
TRANSITIONS = "sglang:spec_mode_transitions_total"
PROBES = "sglang:spec_probe_steps_total"


@dataclass(frozen=True)
class Stage:
    """A speculating server, what is expected of it, the switch of its planted errors, and notes of its steps."""

    engine: CpuEngine
    expected: Reference
    continued: list[Answer]
    penalised: list[Answer]
    switch: Switch
    steps: StepNotes


@pytest.fixture(scope="module", params=plan.of_this_run(RELEASES))
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Page size 1; the server without speculation starts beside it."""
    folder = tmp_path_factory.mktemp("server")
    switch, steps = Switch(folder), StepNotes(folder)
    variables = {**LENGTHS_ON_THE_HOST, **switch.variables, **steps.variables}
    with CpuEngine(request.param, variables=variables).starting() as engine:
        with CpuEngine(request.param, speculating=False) as plain:
            expected = Reference.of(plain)
            continued = plain.generate(scenes.continued(scenes.MANY, expected.many))
            penalised = one_by_one(plain)
        yield Stage(engine.wait(), expected, continued, penalised, switch, steps)


def one_by_one(engine: CpuEngine) -> list[Answer]:
    """Which tokens a penalty has seen already depends on what else is scheduled between two steps."""
    return [engine.generate([prompt])[0] for prompt in scenes.PENALISED]


def test_the_reference_says_something(stage: Stage) -> None:
    """Outputs that repeat themselves or don't depend on the prompt would be equal by chance."""
    expected = stage.expected
    assert all(len(set(answer.tokens)) > len(answer.tokens) // 2 for answer in expected.many)
    assert len({answer.tokens for answer in expected.many}) == len(scenes.MANY)
    ends = [answer.finish for answer in expected.mixed]
    assert ends.count("stop") > len(scenes.STOPPING), "stop tokens and strings, and a grammar that comes to its end"
    assert ends.count("length") > len(scenes.STOPPING)


def test_the_path_is_decode(stage: Stage) -> None:
    state = stage.engine.internal_states()[0]["specpatch"]
    assert (state["off_path"], state["off_path_reason"]) == ("Decode", None)
    stage.engine.generate(scenes.MANY[:1])
    assert stage.engine.metric("sglang:spec_off_path", path="Decode") == 1


def test_always_drafting(stage: Stage) -> None:
    stage.engine.set_threshold(0)
    answers = stage.expected.compare(stage.engine)
    assert acceptance(answers) > 1.5, "the draft model guesses nothing: accepted drafts are not tested"


def test_never_drafting(stage: Stage) -> None:
    stage.engine.set_threshold(1)
    drafted = stage.engine.metric(STEPS, mode="on")
    answers = stage.expected.compare(stage.engine)
    assert acceptance(answers) == 1.0
    assert stage.engine.metric(STEPS, mode="on") == drafted


def test_toggled_every_few_steps(stage: Stage) -> None:
    before = stage.engine.metric(TRANSITIONS)
    with stage.engine.toggled() as values:
        answers = stage.expected.compare(stage.engine)
    assert len(values) >= 4
    assert stage.engine.metric(TRANSITIONS) >= before + 3
    assert 1.0 < acceptance(answers) < 2.5


def test_threshold_crossed_by_requests_that_join_and_leave(stage: Stage) -> None:
    stage.engine.set_threshold(5)
    before = steps_by_mode(stage.engine)
    stage.expected.compare(stage.engine)
    done = {key: value - before.get(key, 0) for key, value in steps_by_mode(stage.engine).items()}
    modes = {mode for (mode, _), value in done.items() if value}
    assert modes == {"on", "off"}
    smaller = {"1", "2", "3-4"}
    assert sum(value for (mode, size), value in done.items() if mode == "off" and size in smaller) == 0
    assert sum(value for (mode, size), value in done.items() if mode == "on" and size not in smaller) == 0


def steps_by_mode(engine: CpuEngine) -> dict[tuple[str, str], float]:
    samples = ((dict(labels), value) for labels, value in engine.samples(STEPS).items())
    return {(labels["mode"], labels["batch_size"]): value for labels, value in samples}


@pytest.mark.parametrize(("threshold", "other_mode"), [(0, "off"), (1, "on")])
def test_probes_change_nothing(stage: Stage, threshold: int, other_mode: str) -> None:
    """Bursts of steps in the other mode, half of all steps."""
    before = stage.engine.metric(PROBES, mode=other_mode)
    stage.engine.update({THRESHOLD: threshold, PROBE_PERMILLE: 500})
    stage.expected.compare(stage.engine)
    stage.engine.update({PROBE_PERMILLE: 0})
    time.sleep(PUBLISHED_SECONDS)
    assert stage.engine.metric(PROBES, mode=other_mode) > before


def test_drafts_between_steps_without_are_as_good(stage: Stage) -> None:
    """From where both draft, a server that often stops drafting accepts as much as one that never does."""
    always, resumed = tokens_at_the_same_places(stage, TOGGLED)
    assert resumed == pytest.approx(always, rel=0.01)


def test_drafts_behind_prompts_read_while_nothing_is_drafted_are_as_good(stage: Stage) -> None:
    """Of such prompts the draft model gets keys and values alone."""
    always, behind = tokens_at_the_same_places(stage, RESUMED)
    assert behind == pytest.approx(always, rel=0.01)


@dataclass(frozen=True)
class Course:
    """The threshold `before` the prompts come, and those that take turns while so many tokens are said."""

    before: int
    values: tuple[int, ...]
    new_tokens: int


TOGGLED = Course(before=0, values=(0, 1), new_tokens=60)
RESUMED = Course(before=1, values=(0,), new_tokens=16)
"""Few tokens, since drafts soon depend on the prompt no more."""


def tokens_at_the_same_places(stage: Stage, course: Course) -> tuple[int, int]:
    """Return the tokens of steps that draft, always and in this course, from where both did."""
    always, other = drafted(stage, replace(course, before=0, values=(0,))), drafted(stage, course)
    places = always.keys() & other.keys()
    assert len(places) > 80
    return sum(always[place] for place in places), sum(other[place] for place in places)


def drafted(stage: Stage, course: Course) -> dict[tuple[tuple[int, ...], int], int]:
    switched(stage, course.before)
    stage.engine.flush()
    stage.engine.set_threshold(course.values[0])
    stage.steps.clear()
    with stage.engine.toggled(course.values):
        prompts = [*scenes.MANY, *scenes.CROWD]
        stage.engine.generate([replace(prompt, new_tokens=course.new_tokens) for prompt in prompts])
    return stage.steps.drafted()


@pytest.mark.parametrize(
    ("error", "course"),
    [
        ("draft position", TOGGLED),
        ("draft slot", TOGGLED),
        ("prompt position", RESUMED),
        ("prompt slot", RESUMED),
    ],
)
def test_a_wrong_position_or_slot_in_the_draft_cache_costs_acceptance(stage: Stage, error: str, course: Course) -> None:
    with stage.switch.wrong(error):
        always, other = tokens_at_the_same_places(stage, course)
    assert other < 0.98 * always


def test_prefixes_decoded_without_drafts(stage: Stage) -> None:
    """Drafts are as good as behind prefilled ones: the draft model's cache is kept right while it does not draft."""
    decoded, prefilled = drafted_on(stage)
    same(prefilled, stage.continued)
    same(decoded, stage.continued)
    assert [answer.verify_steps for answer in decoded] == [answer.verify_steps for answer in prefilled]


@pytest.mark.parametrize("error", ["draft position", "draft slot"])
def test_a_wrong_position_or_slot_behind_a_prefix_costs_acceptance(stage: Stage, error: str) -> None:
    with stage.switch.wrong(error):
        decoded, prefilled = drafted_on(stage)
    same(decoded, stage.continued)
    assert acceptance(decoded) < 0.99 * acceptance(prefilled)


def drafted_on(stage: Stage) -> tuple[list[Answer], list[Answer]]:
    """Return answers drafted behind tokens that were decoded without drafts, and behind the same ones prefilled."""
    switched(stage, threshold=1)
    stage.engine.flush()
    decoded = continued(stage, threshold=0)
    stage.engine.flush()
    return decoded, stage.engine.generate(scenes.continued(scenes.MANY, stage.expected.many))


def continued(stage: Stage, threshold: int) -> list[Answer]:
    """Return answers behind answers that are taken from the cache."""
    said = stage.engine.generate(scenes.MANY)
    switched(stage, threshold)
    answers = stage.engine.generate(scenes.continued(scenes.MANY, said))
    assert all(answer.cached_tokens > len(one.tokens) for answer, one in zip(answers, scenes.MANY, strict=True))
    return answers


def switched(stage: Stage, threshold: int) -> None:
    """Set the threshold, and let a step obey it: prompts are read as the last step was run."""
    stage.engine.set_threshold(threshold)
    stage.engine.generate([scenes.SHORT])


def test_prefixes_drafted_and_continued_without(stage: Stage) -> None:
    stage.engine.flush()
    stage.engine.set_threshold(0)
    same(continued(stage, threshold=1), stage.continued)


def test_penalties(stage: Stage) -> None:
    """Only without drafts: SGLang's verify applies the penalties of its first token to all of its tokens."""
    stage.engine.set_threshold(1)
    same(one_by_one(stage.engine), stage.penalised)


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


@pytest.mark.parametrize(("error", "threshold"), [("position", 0), ("position", 1), ("slot", 1)])
def test_a_position_or_slot_that_is_off_by_one_is_noticed(stage: Stage, error: str, threshold: int) -> None:
    """The comparison of this file fails when decode steps go wrong in either mode."""
    stage.engine.flush()
    stage.engine.set_threshold(threshold)
    with stage.switch.wrong(error):
        answers = stage.engine.generate(scenes.MANY)
    stage.engine.flush()
    with pytest.raises(AssertionError):
        same(answers, stage.expected.many)


def test_a_wrong_length_on_the_host_ends_the_server(stage: Stage) -> None:
    """The last test: the lengths known on the host are the ones that are used, and they are compared."""
    stage.engine.set_threshold(1)
    with stage.switch.wrong("length"):
        stage.engine.begin([scenes.LONG])
        end = time.monotonic() + CRASH_SECONDS
        while "SGLANG_SPECPATCH_CHECK_LENGTHS: host and device differ in 1 of 1" not in stage.engine.log():
            assert time.monotonic() < end
            time.sleep(0.2)

"""The decode off path where other servers don't go: lengths asked for on the host, no overlap, planted errors.

A backend that plans on the host (flashinfer does) can't run on a CPU, so SGLang is told that its backend is one. The
lengths known on the host are compared with the device's before every step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cpu_engine import Answer, CpuEngine, acceptance, scenes
from cpu_engine.edits import Edit

RELEASE = "0.5.16"
LOGPROB_TOLERANCE = 1e-4
CHECKED = {"SGLANG_SPECPATCH_CHECK_LENGTHS": "1"}

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ON_THE_HOST = Edit(("srt/managers/overlap_utils.py",), "decide_needs_cpu_seq_lens", "return True")
PLANTED = 'open(__import__("os").environ["PLANTED_ERROR"]).read()'


GRAMMAR = Edit(
    ("srt/constrained/xgrammar_backend.py",),
    "apply_vocab_mask",
    'return __import__("xgrammar").apply_token_bitmask_inplace(logits, vocab_mask)',
    ("logits", "vocab_mask"),
    owner="XGrammarGrammar",
)
"""SGLang masks with a kernel for GPUs alone."""


def _plant(module: str, owner: str, function: str, error: str, statement: str) -> Edit:
    file = f"srt/speculative/specpatch/offpath_{module}.py"
    return Edit((file,), function, f"{statement} ({PLANTED} == '{error}')", owner=owner)


FAULTS = (
    ON_THE_HOST,
    GRAMMAR,
    _plant("decode", "TargetDecode", "_init_new", "slot", "batch.out_cache_loc = batch.out_cache_loc +"),
    _plant("draft", "DraftKeyWriter", "write", "draft position", "positions = positions +"),
    _plant("draft", "DraftKeyWriter", "write", "draft slot", "slots = slots +"),
    _plant("lengths", "HostLengths", "grew", "length", "batch.seq_lens_cpu = batch.seq_lens_cpu +"),
)
STRUCTURED = [replace(prompt, sampling={"regex": "[0-9a-f]{24}", "ignore_eos": False}) for prompt in scenes.MANY[:3]]


@dataclass(frozen=True)
class Stage:
    """A server whose lengths are asked for on the host, what is expected of it, and the error it is to make."""

    engine: CpuEngine
    many: list[Answer]
    coming_and_going: list[Answer]
    structured: list[Answer]
    planted: Path

    @contextlib.contextmanager
    def wrong(self, error: str) -> Iterator[None]:
        """Make a planted error meanwhile."""
        self.planted.write_text(error)
        try:
            yield
        finally:
            self.planted.write_text("")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    planted = tmp_path_factory.mktemp("planted") / "error"
    planted.write_text("")
    variables = {**CHECKED, "PLANTED_ERROR": str(planted)}
    with CpuEngine(RELEASE, variables=variables, faults=FAULTS).starting() as engine:
        with CpuEngine(RELEASE, speculating=False, faults=[GRAMMAR]) as plain:
            many, coming_and_going = plain.generate(scenes.MANY), plain.generate(scenes.COMING_AND_GOING)
            structured = plain.generate(STRUCTURED)
        yield Stage(engine.wait(), many, coming_and_going, structured, planted)


def same(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    assert [answer.tokens for answer in got] == [answer.tokens for answer in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=LOGPROB_TOLERANCE)


def test_the_path_is_decode(stage: Stage) -> None:
    state = stage.engine.internal_states()[0]["specpatch"]
    assert (state["off_path"], state["off_path_reason"]) == ("Decode", None)
    assert stage.engine.metric("sglang:spec_off_path", path="Decode") == 1


@pytest.mark.parametrize("threshold", [0, 1, 4])
def test_lengths_on_the_host_through_joins_and_leaves(stage: Stage, threshold: int) -> None:
    stage.engine.set_threshold(threshold)
    same(stage.engine.generate(scenes.COMING_AND_GOING), stage.coming_and_going)


def test_lengths_on_the_host_when_switched_every_few_steps(stage: Stage) -> None:
    with stage.engine.toggled():
        answers = stage.engine.generate(scenes.MANY)
    same(answers, stage.many)
    assert acceptance(answers) > 1


def test_drafts_behind_decoded_tokens_are_as_good_as_behind_prefilled_ones(stage: Stage) -> None:
    """The draft model's keys and values of tokens decoded without drafts come from the log, not from a prefill."""
    decoded, prefilled = drafted_on(stage.engine)
    assert [answer.tokens for answer in decoded] == [answer.tokens for answer in prefilled]
    assert [answer.verify_steps for answer in decoded] == [answer.verify_steps for answer in prefilled]


@pytest.mark.parametrize("error", ["draft position", "draft slot"])
def test_a_wrong_position_or_slot_in_the_draft_cache_costs_acceptance(stage: Stage, error: str) -> None:
    with stage.wrong(error):
        decoded, prefilled = drafted_on(stage.engine)
    assert [answer.tokens for answer in decoded] == [answer.tokens for answer in prefilled]
    assert acceptance(decoded) < 0.99 * acceptance(prefilled)


def drafted_on(engine: CpuEngine) -> tuple[list[Answer], list[Answer]]:
    """Return answers drafted behind tokens that were decoded without drafts, and behind the same ones prefilled."""
    engine.flush()
    engine.set_threshold(1)
    longer = scenes.continued(scenes.MANY, engine.generate(scenes.MANY))
    engine.set_threshold(0)
    decoded = engine.generate(longer)
    assert all(answer.cached_tokens > len(one.tokens) for answer, one in zip(decoded, scenes.MANY, strict=True))
    engine.flush()
    return decoded, engine.generate(longer)


@pytest.mark.parametrize("threshold", [0, 1, 3])
def test_structured_output(stage: Stage, threshold: int) -> None:
    stage.engine.set_threshold(threshold)
    same(stage.engine.generate(STRUCTURED), stage.structured)


def test_without_overlap(stage: Stage) -> None:
    with CpuEngine(RELEASE, overlap=False) as engine:
        engine.set_threshold(1)
        same(engine.generate(scenes.COMING_AND_GOING), stage.coming_and_going)
        with engine.toggled():
            same(engine.generate(scenes.MANY), stage.many)


def test_a_wrong_cache_slot_is_noticed(stage: Stage) -> None:
    stage.engine.flush()
    stage.engine.set_threshold(1)
    with stage.wrong("slot"):
        answers = stage.engine.generate(scenes.MANY)
    stage.engine.flush()
    assert any(mine.tokens != theirs.tokens for mine, theirs in zip(answers, stage.many, strict=True))


def test_a_wrong_length_on_the_host_ends_the_server(stage: Stage) -> None:
    """The last test: the lengths known on the host are the ones that are used, and they are compared."""
    stage.engine.set_threshold(1)
    with stage.wrong("length"):
        stage.engine.begin([scenes.LONG])
        end = time.monotonic() + 60
        while "SGLANG_SPECPATCH_CHECK_LENGTHS: host and device differ in 1 of 1" not in stage.engine.log():
            assert time.monotonic() < end
            time.sleep(0.2)

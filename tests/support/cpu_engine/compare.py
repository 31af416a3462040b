"""What a server without speculation says, and when another one says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cpu_engine import scenes
from cpu_engine.client import REQUEST_SECONDS, Answer, EngineClient, Prompt

LOGPROB_TOLERANCE = 1e-4
ABORT_TURNS = 12


def same(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Compare tokens, text, reason of the end and log-probabilities, request by request; raises AssertionError."""
    same_text(got, expected)
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        apart = [abs(one - other) for one, other in zip(mine.logprobs, theirs.logprobs, strict=True)]
        assert max(apart, default=0.0) <= LOGPROB_TOLERANCE, f"request {number}: {apart}"


def same_text(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Compare all but log-probabilities; raises AssertionError."""
    assert [answer.tokens for answer in got] == [answer.tokens for answer in expected]
    assert [(answer.text, answer.finish) for answer in got] == [(answer.text, answer.finish) for answer in expected]


@dataclass(frozen=True)
class Reference:
    """What the server without speculation said."""

    many: list[Answer]
    prompts: list[Prompt]
    """Of all kinds; see `scenes.mixed`."""
    mixed: list[Answer]
    long: Answer

    @classmethod
    def of(cls, engine: EngineClient) -> Self:
        """Ask it everything."""
        prompts = scenes.mixed(engine.generate(scenes.STOPPING))
        return cls(
            many=engine.generate(scenes.MANY),
            prompts=prompts,
            mixed=engine.generate(prompts),
            long=engine.generate([scenes.LONG])[0],
        )

    def compare(self, engine: EngineClient) -> list[Answer]:
        """Ask for all kinds of answers at once, end one request in the middle, and return the others.

        Raises AssertionError if an answer is not what the server without speculation said.
        """
        (long,), others = engine.begin([scenes.LONG]), engine.begin(self.prompts)
        for _ in range(ABORT_TURNS):
            engine.internal_states()
        engine.abort("long")
        aborted, answers = long.result(REQUEST_SECONDS), [other.result(REQUEST_SECONDS) for other in others]
        same(answers, self.mixed)
        assert aborted.finish == "abort"
        assert 0 < len(aborted.tokens) < scenes.LONG.new_tokens
        assert aborted.tokens == self.long.tokens[: len(aborted.tokens)]
        return answers

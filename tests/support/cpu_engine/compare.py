"""When two servers said the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cpu_engine.client import Answer

LOGPROB_TOLERANCE = 1e-4


def same(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Compare tokens, text, reason of the end and log-probabilities, request by request; raises AssertionError."""
    assert [answer.tokens for answer in got] == [answer.tokens for answer in expected]
    assert [(answer.text, answer.finish) for answer in got] == [(answer.text, answer.finish) for answer in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=LOGPROB_TOLERANCE)

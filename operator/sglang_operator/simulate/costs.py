"""What one decode step costs under the conditions of a moment, and what it yields.

A curve says what a step costs at the context it was measured at, drafting with its own number of drafted tokens or not
at all. Two things are added here, computed and not measured:

- **Context.** A decode step reads the whole KV cache once. A token of context is 2 × 32 layers × 8 heads × 128 × 2
  bytes = 131,072 bytes in the measured shape, and an H200 reads about three quarters of its 4.8 TB/s, hence 36 ns a
  token and step. Verification reads it once for all drafted tokens, and the draft, one layer of 32, once for each of
  three: 1 + 3/32 times as much while drafting.
- **Other draft lengths**, which only SGLang's own adaptive rule uses: a step is taken as linear in the number of
  drafted tokens, between off (none) and on (the curve's three).

Conditions also hold the prompts' acceptance: every class of prompts has the curve's mean times a factor, within what
the draft length allows.
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_operator.simulate.curves.acceptance import mean_for_chain
from sglang_operator.simulate.curves.curve import Curve, Mode

DRAFTED_TOKENS = 3
"""Drafted tokens for which a curve's `on` holds."""
LONGEST_ACCEPT_LENGTH = DRAFTED_TOKENS + 1
"""Output tokens of a step in which every draft is accepted."""
KV_SECONDS_PER_TOKEN = 131_072 / 3.6e12
KV_READS_DRAFTING = 1 + DRAFTED_TOKENS / 32
CURVE_CONTEXT_TOKENS = 208
"""Mean context at which the curves hold: 128 prompt tokens and half of 160 output tokens."""
LARGEST_BATCH = 256


class StepSeconds(NamedTuple):
    """Seconds of one step, drafting and not."""

    on: float
    off: float


class Costs:
    """Step times of one curve; batch sizes go from 1 to `LARGEST_BATCH`."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        sizes = range(1, LARGEST_BATCH + 1)
        self._off = [0.0, *(curve.step_seconds(Mode.OFF, size) for size in sizes)]
        self._on = [0.0, *(curve.step_seconds(Mode.ON, size) for size in sizes)]

    def step_seconds(self, batch: int, context_tokens: float) -> StepSeconds:
        """Seconds of a step in either mode, `context_tokens` over all requests of the batch."""
        beyond = context_tokens - batch * CURVE_CONTEXT_TOKENS
        if beyond <= 0:
            return StepSeconds(self._on[batch], self._off[batch])
        reading = KV_SECONDS_PER_TOKEN * beyond
        return StepSeconds(self._on[batch] + KV_READS_DRAFTING * reading, self._off[batch] + reading)

    def accept_length(self, factor: float, drafted_tokens: int = DRAFTED_TOKENS) -> float:
        """Mean output tokens of a request and step, for prompts with `factor` times the curve's mean."""
        mean = min(max(self.curve.accept_length * factor, 1.0), float(LONGEST_ACCEPT_LENGTH))
        if drafted_tokens == DRAFTED_TOKENS:
            return mean
        return mean_for_chain(mean, LONGEST_ACCEPT_LENGTH, drafted_tokens + 1)


def length_variance(mean: float, longest: int) -> float:
    """Variance of the output tokens of a request and step, `mean` of them of at most `longest`.

    With probabilities p^(k-1)·(1-p) for k below `longest` and p^(longest-1) for `longest` itself (see `acceptance`),
    the second moment is the sum of (2k-1)·p^(k-1) over k = 1 … longest.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**k for k in range(longest)) < mean else (low, p)
    second = sum((2 * k - 1) * low ** (k - 1) for k in range(1, longest + 1))
    return max(0.0, second - mean * mean)

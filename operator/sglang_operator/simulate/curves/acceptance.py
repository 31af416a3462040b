"""How many tokens a drafting step yields: seeded draws with an exact mean.

With a chain of d drafted tokens of which each is accepted with probability p once all before it were, a step yields
1 + (number accepted) tokens, between 1 and n = d + 1. Its mean is 1 + p + p² + … + p^(n−1), which is solved for
p given the wanted mean. Draws come from a table that holds each length as often as its probability says (so the
table's mean is exact to one part in its size) in an order shuffled by the seed.
"""

from __future__ import annotations

import random

_TABLE_SIZE = 4096
_SPREAD = 2654435761  # Knuth's multiplicative hash: neighbouring request numbers start far apart


class AcceptanceTable:
    """Draws of output tokens per drafting step.

    mean: wanted mean in tokens, from 1 to `longest`.
    longest: tokens of a fully accepted step (drafted tokens + 1).

    Raises ValueError if mean is outside 1 … longest.
    """

    def __init__(self, mean: float, longest: int, seed: int) -> None:
        _require_possible(mean, longest)
        self.mean = mean
        self.longest = longest
        self._draws = _shuffled_quotas(_length_weights(_continue_probability(mean, longest), longest), seed)

    def start(self, request_number: int) -> int:
        """The cursor at which a request begins to draw."""
        return request_number * _SPREAD % _TABLE_SIZE

    def draw(self, cursor: int) -> int:
        """Tokens of the step at this cursor; the next step uses cursor + 1."""
        return self._draws[cursor % _TABLE_SIZE]


def mean_for_chain(mean: float, longest_of_mean: int, longest: int) -> float:
    """Mean tokens of a chain of another length whose drafted tokens are accepted with the same probability.

    mean: known mean in tokens with steps of at most `longest_of_mean` tokens; the answer is for at most `longest`.
    Raises ValueError if that mean is impossible.
    """
    _require_possible(mean, longest_of_mean)
    p = _continue_probability(mean, longest_of_mean)
    return min(float(longest), sum(p**k for k in range(longest)))


def _require_possible(mean: float, longest: int) -> None:
    if not 1.0 <= mean <= longest:
        raise ValueError(f"mean acceptance length {mean:g} must lie between 1 and {longest}, the drafted tokens + 1")


def _continue_probability(mean: float, longest: int) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**k for k in range(longest)) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _length_weights(p: float, longest: int) -> list[float]:
    """Probability of yielding exactly 1 … longest tokens."""
    return [p ** (k - 1) * (1 - p) for k in range(1, longest)] + [p ** (longest - 1)]


def _shuffled_quotas(weights: list[float], seed: int) -> list[int]:
    draws: list[int] = []
    total = 0.0
    for length, weight in enumerate(weights, start=1):
        total += weight
        draws.extend([length] * (round(total * _TABLE_SIZE) - len(draws)))
    draws.extend([len(weights)] * (_TABLE_SIZE - len(draws)))
    random.Random(seed).shuffle(draws)
    return draws

"""Whether two servers said the same, on hardware where equal sums differ in their last bits.

Greedy outputs of two kernels part where two tokens are about equally probable, and say nothing about each other from
there on. So answers are compared step by step up to the first difference. That difference is a tie if the reference
itself gave the other token almost the same probability; else it is an error, as is a log-probability that is off.
A wrong position, length or KV slot shows in the log-probabilities of the very next steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpubench.client import Answer


class Verdict(StrEnum):
    """How an answer compares with the reference."""

    EQUAL = "equal"
    TIE = "tie"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One answer against its reference: the steps compared, and the largest difference of a log-probability."""

    verdict: Verdict
    steps: int
    difference: float


def compare(reference: Answer, other: Answer, tolerance: float) -> Comparison:
    """Compare step by step; `tolerance` is of natural log-probabilities."""
    difference = 0.0
    for index, (expected, said) in enumerate(zip(reference.steps, other.steps, strict=False)):
        if said.token != expected.token:
            behind = expected.logprob - expected.top.get(said.token, float("-inf"))
            verdict = Verdict.TIE if behind <= tolerance and difference <= tolerance else Verdict.WRONG
            return Comparison(verdict=verdict, steps=index, difference=difference)
        difference = max(difference, abs(said.logprob - expected.logprob))
    whole = len(reference.steps) == len(other.steps) and difference <= tolerance
    return Comparison(verdict=Verdict.EQUAL if whole else Verdict.WRONG, steps=len(other.steps), difference=difference)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All answers of one run against their references."""

    equal: int
    ties: int
    wrong: int
    steps: int
    difference: float

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"{self.equal} equal, {self.ties} part at a tie, {self.wrong} wrong; {self.steps} steps compared, "
            f"log-probabilities within {self.difference:.4f}"
        )


def summary(references: Sequence[Answer], others: Sequence[Answer], tolerance: float) -> Summary:
    """Compare a run of answers with their references."""
    found = [compare(one, other, tolerance) for one, other in zip(references, others, strict=True)]
    counts = Counter(item.verdict for item in found)
    return Summary(
        equal=counts[Verdict.EQUAL],
        ties=counts[Verdict.TIE],
        wrong=counts[Verdict.WRONG],
        steps=sum(item.steps for item in found),
        difference=max(item.difference for item in found),
    )

"""What the servers are asked: the same for the one without speculation and for those that are compared with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cpu_engine.client import Answer, Prompt
from cpu_engine.models import VOCABULARY

FIRST_WORD = 3
"""Smaller token ids are special ones."""


def prompts(seed: int, count: int, new_tokens: int, shortest: int = 5, longest: int = 60) -> list[Prompt]:
    """Return random prompts of random lengths, with log-probabilities asked for."""
    draw = random.Random(seed)

    def tokens() -> tuple[int, ...]:
        return tuple(draw.randrange(FIRST_WORD, VOCABULARY) for _ in range(draw.randrange(shortest, longest)))

    return [Prompt(tokens(), new_tokens, logprobs=True) for _ in range(count)]


MANY = prompts(seed=1, count=8, new_tokens=32)
"""Eight requests that begin and end together."""

CROWD = prompts(seed=3, count=14, new_tokens=48, shortest=30, longest=50)
"""More tokens than CROWDED slots hold: some requests lose theirs and start again."""
CROWDED = 768

STOPPING = prompts(seed=4, count=4, new_tokens=40, longest=20)
"""Requests to be given stop tokens and stop strings that their own answers contain."""

PENALTIES: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"min_new_tokens": 10, "ignore_eos": False},
)
PENALISED = [
    replace(prompt, sampling=penalty)
    for prompt, penalty in zip(prompts(seed=5, count=3, new_tokens=24, longest=20), PENALTIES, strict=True)
]
"""Requests whose logits depend on what has been said."""

SHORT = Prompt((3, 4, 5), new_tokens=8)

LONG = replace(prompts(seed=6, count=1, new_tokens=160)[0], name="long")

GRAMMAR = "[0-9a-f]{24}"
_SHAPES: tuple[dict[str, Any], ...] = (
    {"regex": GRAMMAR, "ignore_eos": False}, {}, {"logit_bias": {"77": 3.0, "78": -100.0}}, {},
)  # fmt: skip
_JOINING = [
    replace(prompt, new_tokens=12 + 7 * (number % 5), sampling=_SHAPES[number % len(_SHAPES)])
    for number, prompt in enumerate(prompts(seed=2, count=16, new_tokens=0, longest=30))
]


def mixed(stopping: Sequence[Answer]) -> list[Prompt]:
    """Return requests of all kinds, which join while others run and leave at different times.

    There are more than the server runs at once. `stopping` are the answers to STOPPING without stops.
    """
    requests = [*_JOINING, *stopped(STOPPING, stopping)]
    return [replace(prompt, delay_seconds=0.1 * number) for number, prompt in enumerate(requests)]


def continued(asked: Sequence[Prompt], answers: Sequence[Answer], said: int = 17) -> list[Prompt]:
    """Return the next turn of conversations: prompt, the first tokens of its answer, a few tokens more."""
    return [
        replace(prompt, tokens=(*prompt.tokens, *answer.tokens[:said], *reversed(prompt.tokens[:5])))
        for prompt, answer in zip(asked, answers, strict=True)
    ]


def stopped(asked: Sequence[Prompt], answers: Sequence[Answer]) -> list[Prompt]:
    """Return the same requests, told to stop at the token or at the word that their answers have in the middle."""
    told: list[Prompt] = []
    for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
        by_text: dict[str, Any] = {"stop": [answer.text.split()[20 + number]]}
        by_token: dict[str, Any] = {"stop_token_ids": [answer.tokens[20 + number]]}
        told.append(replace(prompt, sampling=by_text if number % 2 else by_token))
    return told

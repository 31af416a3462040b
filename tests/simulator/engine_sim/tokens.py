"""Text and token ids of a model that says nothing: enough for clients to count, and the same on every run."""

from __future__ import annotations

_WORDS = ("the", "cache", "holds", "what", "a", "step", "has", "read", "and", "each", "draft", "waits", "its", "turn")
_VOCABULARY = 32_000
_CHARACTERS_PER_TOKEN = 4


def count_tokens(text: str) -> int:
    """Tokens of a text, by the rule of thumb of four characters each; at least 1."""
    return max(1, -(-len(text) // _CHARACTERS_PER_TOKEN))


def token_text(number: int, start: int, end: int) -> str:
    """Text of the output tokens start … end−1 of a request."""
    return "".join(f" {_WORDS[(number + index) % len(_WORDS)]}" for index in range(start, end))


def token_ids(number: int, start: int, end: int) -> list[int]:
    """Ids of the output tokens start … end−1 of a request."""
    return [(number * 31 + index * 7) % _VOCABULARY for index in range(start, end)]

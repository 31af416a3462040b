"""Checks of `engine.args` before any GPU is taken: contradictions, abbreviations and slips that a person can't see.

The server reads its flags with argparse, which takes `--flag=value` and any unique beginning of a flag, and lets the
last of two equal flags win. An item is compared with the operator's own flags under those rules. The other flags of
SGLang differ by release, so an item is judged only where every release judges alike: no flag of SGLang is the
beginning of a flag listed here (tests hold that against real releases), hence such an item is an abbreviation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from sglang_operator.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class OwnFlag:
    """A flag that `engine.args` may not hold, with the sentence parts that say why and what to do instead."""

    name: str
    aliases: tuple[str, ...]
    cause: str
    remedy: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """All full spellings."""
        return (self.name, *self.aliases)


def _unsupported(name: str, *aliases: str, cause: str, remedy: str = "leave the flag out") -> OwnFlag:
    return OwnFlag(name=name, aliases=aliases, cause=cause, remedy=remedy)


_ONE_NODE: Final = "a replica is one pod on one node"
_PLAIN_HTTP: Final = "probes, metrics and live updates reach the server over plain HTTP"
UNSUPPORTED: Final = (
    _unsupported("--help", "-h", cause="it makes the server print its help and end"),
    _unsupported("--nnodes", cause=_ONE_NODE),
    _unsupported("--node-rank", cause=_ONE_NODE),
    _unsupported(
        "--pp-size",
        "--pipeline-parallel-size",
        cause="the GPUs of a replica are its tensor parallel size",
        remedy="use spec.gpus.count",
    ),
    _unsupported("--ssl-keyfile", cause=_PLAIN_HTTP, remedy="end TLS in front of the Service"),
    _unsupported("--ssl-certfile", cause=_PLAIN_HTTP, remedy="end TLS in front of the Service"),
    _unsupported("--grpc-mode", cause=_PLAIN_HTTP),
    _unsupported("--smg-grpc-mode", cause=_PLAIN_HTTP),
)

_PER_RANK: Final = "with data parallel attention each rank would decide on its own batch whether to draft"
_NO_DRAFTING: Final = "leave the flag out, or set spec.speculation.algorithm to None"
SPECULATION_DP_SWITCH: Final = OwnFlag(name="--enable-dp-attention", aliases=(), cause=_PER_RANK, remedy=_NO_DRAFTING)
SPECULATION_DP_SIZES: Final = tuple(
    OwnFlag(name=name, aliases=(alias,), cause=_PER_RANK, remedy=_NO_DRAFTING)
    for name, alias in (("--dp-size", "--data-parallel-size"), ("--attn-dp-size", "--attention-data-parallel-size"))
)

BARE_SWITCHES: Final = frozenset(
    {
        "--disable-custom-all-reduce",
        "--disable-overlap-schedule",
        "--disable-radix-cache",
        "--enable-cache-report",
        "--enable-metrics-for-all-schedulers",
        "--enable-mixed-chunk",
        "--enable-torch-compile",
        "--log-requests",
        "--skip-server-warmup",
        "--skip-tokenizer-init",
        "--trust-remote-code",
    }
)
"""Well-known flags that take no value in any supported release. Others are not guessed at."""

_FLAG_START: Final = re.compile(r"--?[A-Za-z]")
_JOINED: Final = re.compile(r"(--?[A-Za-z][\w.-]*)\s+(.*)", re.DOTALL)
_SECRET: Final = re.compile(r"key|token|password|secret", re.IGNORECASE)
_SHOWN_LETTERS: Final = 80


@dataclass(frozen=True)
class _Item:
    """One item of `engine.args`, with what follows it."""

    index: int
    text: str
    following: str | None

    @property
    def flag(self) -> str:
        """The item without `=value`."""
        return self.text.partition("=")[0]

    @property
    def value(self) -> str | None:
        """The flag's value, in this item or the next; None when there is none."""
        if "=" in self.text:
            return self.text.partition("=")[2]
        return self.following if self.following is not None and not _FLAG_START.match(self.following) else None

    def refuse(self, why: str) -> NoReturn:
        """Refuse the item; `why` follows its path and text."""
        raise SpecError("ConflictingArgs", f"spec.engine.args[{self.index}] {_quoted(self.text)} {why}.")


def check(items: Sequence[str], *, own: Sequence[OwnFlag], speculates: bool) -> None:
    """Check the user's arguments against the operator's `own` flags.

    Raises:
        SpecError: with the reason `ConflictingArgs`, naming the item and the field to use instead.
    """
    listed = (*own, *UNSUPPORTED, *((SPECULATION_DP_SWITCH, *SPECULATION_DP_SIZES) if speculates else ()))
    seen: set[str] = set()
    for item in _items(items):
        _check_form(item)
        if not _FLAG_START.match(item.text):
            continue
        _check_listed(item, listed)
        _check_switch(item)
        if item.flag in seen:
            item.refuse("is there twice, and the server would take the last one: keep one of them")
        seen.add(item.flag)


def _quoted(text: str) -> str:
    """Quote for a message, short and without a secret's value: messages end up in the status and in logs."""
    flag = re.match(r"--?[A-Za-z][\w.-]*", text)
    if flag is not None and _SECRET.search(flag[0]) and len(flag[0]) < len(text):
        return f'"{flag[0]}…"'
    return json.dumps(text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…", ensure_ascii=False)


def _items(texts: Sequence[str]) -> list[_Item]:
    following = [*texts[1:], None] if texts else []
    return [_Item(index, text, after) for index, (text, after) in enumerate(zip(texts, following, strict=True))]


def _check_form(item: _Item) -> None:
    """Refuse what can't be meant: items reach the server as they are, without a shell to split or unquote them."""
    if joined := _JOINED.fullmatch(item.text):
        flag, rest = joined.groups()
        value = "…" if _SECRET.search(flag) else rest
        parts = f"{_quoted(flag)}, {_quoted(value)}" if rest else _quoted(flag)
        item.refuse(f"holds white space after the flag, and no shell splits it: write it as {parts}")
    if item.text == "--":
        item.refuse("ends the flags, and the server takes nothing else: leave it out")
    if item.index == 0 and not _FLAG_START.match(item.text):
        item.refuse("is no flag: the first item must be one, such as --mem-fraction-static")
    if _is_quoted_json(item.text):
        item.refuse("is JSON inside single quotes, and no shell takes them off: leave the quotes out")


def _is_quoted_json(text: str) -> bool:
    if not re.fullmatch(r"'\s*[\[{].*[\]}]\s*'", text, re.DOTALL):
        return False
    try:
        json.loads(text[1:-1])
    except ValueError:
        return False
    return True


def _check_listed(item: _Item, listed: Sequence[OwnFlag]) -> None:
    exact = [flag for flag in listed if item.flag in flag.spellings]
    meant = exact or [flag for flag in listed if any(name.startswith(item.flag) for name in flag.spellings)]
    if not meant or (meant[0] in SPECULATION_DP_SIZES and len(meant) == 1 and item.value == "1"):
        return
    if len(meant) > 1:
        candidates = ", ".join(f"{flag.name} ({flag.remedy})" for flag in meant)
        item.refuse(f"is an abbreviation that may stand for {candidates}: write flags in full")
    flag = meant[0]
    short = "" if exact else f"is short for {flag.name} and "
    item.refuse(f"{short}can't be set here, since {flag.cause}: {flag.remedy}")


def _check_switch(item: _Item) -> None:
    if item.flag not in BARE_SWITCHES or item.value is None:
        return
    if item.value.lower() in {"false", "0", "no", "off"}:
        item.refuse(f"is a switch that takes no value: to leave it off, leave out both it and {_quoted(item.value)}")
    item.refuse(f"is a switch that takes no value: write {_quoted(item.flag)} alone, without {_quoted(item.value)}")

"""Words of condition messages: cleaned, cut to size, and free of numbers that tick.

A message that changed at every pass would cause a write at every pass, so durations are coarse and addresses
that a program makes up anew each time are taken out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

MESSAGE_BYTES = 1024
"""Longest condition or event message. Events are refused by the API server beyond it."""
LOG_TAIL_BYTES = 480
"""Longest log excerpt in a message: leaves room for the cause and the next step before it."""
STEP_MINUTES = 5
"""Elapsed times are told in steps of this many minutes."""

_ELLIPSIS = "…"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OBJECT_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")
_EPHEMERAL_PORT = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}|\]):\d{4,5}->")
_API_KEY = re.compile(
    r"""(api_key['"]?\s*[=:]\s*)(['"])(?:\\.|(?!\2).)*(?:\2|$)|(--(?:admin-)?api-key(?:=|\s+|['"],\s*['"]))[^\s'"]+"""
)


def hide_api_keys(log: str) -> str:
    """Take API keys out of a server's log: SGLang writes its arguments, keys included, when it starts."""
    return _API_KEY.sub(lambda found: f"{found[1] or found[3]}{_ELLIPSIS}", log)


def clean(text: str) -> str:
    """Return `text` as valid UTF-8 without control characters, made-up addresses and ephemeral ports."""
    valid = text.encode("utf-8", "replace").decode("utf-8")
    calm = _EPHEMERAL_PORT.sub(r"\1->", _OBJECT_ADDRESS.sub("", valid.replace("\r\n", "\n")))
    return _CONTROL.sub("", calm).strip()


def one_line(text: str) -> str:
    """Clean `text` and fold all white space, line breaks included, to single spaces."""
    return " ".join(clean(text).split())


def cut(text: str, limit_bytes: int = MESSAGE_BYTES) -> str:
    """Keep the start of `text`: at most `limit_bytes` bytes of UTF-8, cut between characters."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode("utf-8")
    room = limit_bytes - len(_ELLIPSIS.encode())
    return raw[:room].decode("utf-8", "ignore").rstrip() + _ELLIPSIS


def tail(text: str, limit_bytes: int = LOG_TAIL_BYTES) -> str:
    """Clean a log and keep its end, where the cause of a crash stands, from the start of a line where possible."""
    raw = clean(text).encode()
    if len(raw) <= limit_bytes:
        return raw.decode()
    kept = raw[-(limit_bytes - len(_ELLIPSIS.encode())) :].decode("utf-8", "ignore")
    _, line_break, whole_lines = kept.partition("\n")
    return _ELLIPSIS + (whole_lines if line_break and whole_lines.strip() else kept).lstrip()


def sentence(text: str) -> str:
    """One line that ends with a full stop; empty stays empty."""
    line = one_line(text)
    return line if not line or line.endswith((".", "!", "?", _ELLIPSIS)) else f"{line}."


def paragraph(*sentences: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(part for part in sentences if part)


def pods(count: int) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} pod" if count == 1 else f"{count} pods"


def share(part: int, whole: int, singular_verb: str) -> str:
    """`0 of 1 pod answers`, `1 of 2 pods answer`: `singular_verb` is written as for one."""
    verb = singular_verb if whole == 1 else {"has": "have"}.get(singular_verb, singular_verb.removesuffix("s"))
    return f"{part} of {pods(whole)} {verb}"


def some(items: Sequence[str], limit: int = 3, *, separator: str = ", ") -> str:
    """List the first `limit` items, and say how many more there are."""
    shown = separator.join(items[:limit])
    return shown if len(items) <= limit else f"{shown}{separator}and {len(items) - limit} more"


def elapsed(since: datetime | None, now: datetime) -> str:
    """Say how long something lasts, rounded down to steps of `STEP_MINUTES`."""
    minutes = whole_minutes(now - since) if since else 0
    steps = minutes // STEP_MINUTES * STEP_MINUTES
    return f"{steps} min" if steps else f"less than {STEP_MINUTES} min"


def whole_minutes(duration: timedelta) -> int:
    """Whole minutes of a duration; a negative one, from clocks that differ, counts as 0."""
    return max(0, int(duration.total_seconds())) // 60


def rfc3339(moment: datetime) -> str:
    """Write a time as Kubernetes does: UTC, to the second, with `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: object) -> datetime | None:
    """Read a time as Kubernetes writes it; None when it is missing or not one."""
    if not isinstance(text, str) or not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

"""PromQL for one pass: one query a metric for the whole cluster, never one a service.

Three things make a plain `sum(increase(…))` wrong, and every query here is shaped by them:

- **Two spellings.** SGLang writes `sglang:x`; some collectors store `sglang_x`, and during an upgrade both exist.
  A regular expression on the name can't be used, since `increase` and `timestamp` drop the name and Prometheus
  then refuses series that have become equal ("vector cannot contain metrics with the same labelset"). `or` joins
  the spellings instead: where both carry the same labels, the colon wins whole, so that tokens and seconds always
  come from the same series.
- **Copies.** Two scrapers, two jobs or eight tensor-parallel ranks count the same steps: `max` takes one of them.
- **Data-parallel ranks** run batches of their own: their tokens and seconds are added up, which makes the rate
  their mean weighted by time.

A window holds at least two samples or gives nothing, and the steps before a series' first sample don't count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TOKENS = "spec_mode_tokens_total"
SECONDS = "spec_mode_seconds_total"
THRESHOLD = "spec_disable_batch_threshold"
RUNNING_REQUESTS = "num_running_reqs"

_SPELLINGS = ("sglang:", "sglang_")
_RE2_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, kw_only=True)
class Queries:
    """One PromQL expression a metric; every row carries the labels `namespace` and `pod`."""

    tokens: str
    """Output tokens within the evidence window, by `mode` and `batch_size`."""
    seconds: str
    """Seconds of the same steps."""
    recent_seconds: str
    """Seconds of the steps within the recent window."""
    sampled_at: str
    """Unix time of the newest sample of the patch's own metrics, with the stored name in the label `series`."""
    running_requests: str
    """Requests that are running."""


def build(*, evidence_window_seconds: int, recent_window_seconds: int, namespaces: Sequence[str] = ()) -> Queries:
    """Write the queries of one pass; `namespaces` restricts them, empty means the whole cluster."""
    where = _matchers(namespaces)
    return Queries(
        tokens=_increase(TOKENS, where, evidence_window_seconds),
        seconds=_increase(SECONDS, where, evidence_window_seconds),
        recent_seconds=_increase(SECONDS, where, recent_window_seconds),
        sampled_at=_newest_sample((THRESHOLD, SECONDS), where),
        running_requests=(
            "sum by (namespace, pod) (max by (namespace, pod, dp_rank) ("
            + _either(RUNNING_REQUESTS, lambda name: f"{name}{where}")
            + "))"
        ),
    )


def quote(text: str) -> str:
    """Write any text as a PromQL string, quotes included."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def literal_pattern(text: str) -> str:
    """Write any text as an RE2 pattern that matches only this text."""
    return _RE2_SPECIAL.sub(r"\\\g<0>", text)


def _matchers(namespaces: Sequence[str]) -> str:
    if not namespaces:
        return ""
    return "{namespace=~" + quote("|".join(literal_pattern(name) for name in sorted(set(namespaces)))) + "}"


def _either(metric: str, expression: Callable[[str], str]) -> str:
    return " or ".join(expression(f"{prefix}{metric}") for prefix in _SPELLINGS)


def _increase(metric: str, where: str, window_seconds: int) -> str:
    increases = _either(metric, lambda name: f"increase({name}{where}[{window_seconds}s])")
    return (
        f"sum by (namespace, pod, mode, batch_size) (max by (namespace, pod, dp_rank, mode, batch_size) ({increases}))"
    )


def _newest_sample(metrics: Sequence[str], where: str) -> str:
    # label_replace keeps the stored name as a label, which timestamp() would drop.
    times = " or ".join(
        _either(metric, lambda name: f'label_replace(timestamp({name}{where}), "series", "{name}", "", "")')
        for metric in metrics
    )
    return f"max by (namespace, pod, series) ({times})"

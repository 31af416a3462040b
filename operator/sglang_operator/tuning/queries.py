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

All windows of `samples.WINDOWS` come in one answer, told apart by the label `window` (`offset` makes them meet
without overlap). Prometheus does the counting, so that nothing has to be remembered here: it handles resets and missed
scrapes series by series, before copies are taken out, and after a restart of the operator the evidence is all there.
A window holds at least two samples or gives nothing; what is zero is left out of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_operator.tuning.samples import PROBES, SPARSE, WINDOWS, Window

STEPS = "spec_mode_steps_total"
REQUESTS = "spec_mode_requests_total"
TOKENS = "spec_mode_tokens_total"
SECONDS = "spec_mode_seconds_total"
SECONDS_SQUARED = "spec_mode_seconds_squared_total"
PROBE_STEPS = "spec_probe_steps_total"
THRESHOLD = "spec_disable_batch_threshold"
RUNNING_REQUESTS = "num_running_reqs"
QUEUED_REQUESTS = "num_queue_reqs"
QUEUE_SECONDS = 60
"""A queue that was empty at a scrape within this time is none that waits."""

_SPELLINGS = ("sglang:", "sglang_")
_RE2_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, kw_only=True)
class Queries:
    """One PromQL expression a metric; every row carries the labels `namespace` and `pod`."""

    steps: str
    """Counted decode steps by `mode`, `batch_size` and `window`."""
    requests: str
    """Batch sizes of these steps added up."""
    tokens: str
    """Their output tokens."""
    seconds: str
    """Their seconds."""
    seconds_squared: str
    """Squares of their seconds added up."""
    probe_steps: str
    """Steps that ran in `mode` only to measure it, within the window `samples.PROBES`."""
    sampled_at: str
    """Unix time of the newest sample of the patch's own metrics, with the stored name in the label `series`."""
    running_requests: str
    """Requests that are running."""
    queued_requests: str
    """Requests that waited at each scrape of the last minute."""


def build(*, namespaces: Sequence[str] = ()) -> Queries:
    """Write the queries of one pass; `namespaces` restricts them, empty means the whole cluster."""
    where = _matchers(namespaces)
    windows = (*WINDOWS, SPARSE)
    return Queries(
        steps=_increases(STEPS, where, windows),
        requests=_increases(REQUESTS, where, windows),
        tokens=_increases(TOKENS, where, windows),
        seconds=_increases(SECONDS, where, windows),
        seconds_squared=_increases(SECONDS_SQUARED, where, windows),
        probe_steps=_increases(PROBE_STEPS, where, (PROBES,)),
        sampled_at=_newest_sample((THRESHOLD, SECONDS), where),
        running_requests=_of_pods(_either(RUNNING_REQUESTS, lambda name: f"{name}{where}")),
        queued_requests=_of_pods(
            _either(QUEUED_REQUESTS, lambda name: f"min_over_time({name}{where}[{QUEUE_SECONDS}s])")
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


def _increases(metric: str, where: str, windows: Sequence[Window]) -> str:
    return " or ".join(
        f'label_replace({_increase(metric, where, window)} > 0, "window", "{window.label}", "", "")'
        for window in windows
    )


def _increase(metric: str, where: str, window: Window) -> str:
    offset = f" offset {window.age_seconds}s" if window.age_seconds else ""
    increases = _either(metric, lambda name: f"increase({name}{where}[{window.length_seconds}s]{offset})")
    return (
        f"sum by (namespace, pod, mode, batch_size) (max by (namespace, pod, dp_rank, mode, batch_size) ({increases}))"
    )


def _of_pods(gauge: str) -> str:
    return f"sum by (namespace, pod) (max by (namespace, pod, dp_rank) ({gauge}))"


def _newest_sample(metrics: Sequence[str], where: str) -> str:
    # label_replace keeps the stored name as a label, which timestamp() would drop.
    times = " or ".join(
        _either(metric, lambda name: f'label_replace(timestamp({name}{where}), "series", "{name}", "", "")')
        for metric in metrics
    )
    return f"max by (namespace, pod, series) ({times})"

"""The operator's own metrics, for its `/metrics`."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

PASSES: Final = Counter("sglang_operator_passes", "Passes over InferenceServices, by outcome.", ["outcome"])
PASS_SECONDS: Final = Histogram(
    "sglang_operator_pass_seconds", "Duration of a pass.", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
)
TICKS: Final = Counter("sglang_operator_tuning_ticks", "Passes of the tuning loop, by outcome.", ["outcome"])
TICK_SECONDS: Final = Histogram(
    "sglang_operator_tuning_tick_seconds", "Duration of a tuning pass.", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
)
THRESHOLD: Final = Gauge(
    "sglang_operator_threshold", "Speculation disable threshold last decided.", ["namespace", "name"]
)
SERVICES: Final = Gauge("sglang_operator_services", "InferenceServices known to the operator.")

"""docs/tuning.md tells what the code does: its example, its constants, its settings."""

from __future__ import annotations

import pathlib

import pytest
from evidence import START, at, auto, decided, fresh

from sglang_operator.api.v1alpha1 import DisableThreshold
from sglang_operator.settings import PREFIX, Settings
from sglang_operator.tuning import queries
from sglang_operator.tuning.estimate import BURST_STEPS
from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.policy import DEFAULT_BATCH_SIZE, Outcome, decide
from sglang_operator.tuning.samples import BUCKETS, WINDOWS
from sglang_specpatch.runtime import probing as engine_probing

DOCS = pathlib.Path(__file__).parents[3] / "docs"
TEXT = " ".join((DOCS / "tuning.md").read_text().split())


def test_the_example_is_a_real_message() -> None:
    verdict = decide(auto(), fresh(at("49-64", on=4800, off=8000)), decided(65), START)
    assert verdict.outcome is Outcome.MOVED
    assert verdict.message in TEXT


@pytest.mark.parametrize("field", [name for name in Settings.model_fields if name.startswith("tuning_")])
def test_every_setting_is_listed_with_its_default(field: str) -> None:
    assert f"| `{PREFIX}{field.upper()}` | {Settings.model_fields[field].default} |" in TEXT


@pytest.mark.parametrize(
    "metric", [value for name, value in vars(queries).items() if name.isupper() and "spec_mode" in str(value)]
)
def test_every_metric_is_listed(metric: str) -> None:
    assert f"`sglang:{metric}" in TEXT


def test_the_constants_are_those_of_the_code() -> None:
    assert f"| `min_gain` | {100 * DEFAULTS.min_gain:.0f} % |" in TEXT
    assert f"| `min_peak_gain` | {100 * DEFAULTS.min_peak_gain:.0f} % |" in TEXT
    assert f"| `deviations` | {DEFAULTS.deviations:.0f} |" in TEXT
    assert f"| `emergency_gain` | {100 * DEFAULTS.emergency_gain:.0f} % |" in TEXT
    assert f"| `moves_an_hour` | {DEFAULTS.moves_an_hour} |" in TEXT
    assert f"| `half_life_seconds` | {DEFAULTS.half_life_seconds:.0f} s |" in TEXT
    assert f"| `load_half_life_seconds` | {DEFAULTS.load_half_life_seconds:.0f} s |" in TEXT
    costs = f"{100 * DEFAULTS.probe_cost:.1f} %, {100 * DEFAULTS.search_cost:.0f} %"
    assert f"| `probe_cost`, `search_cost` | {costs} |" in TEXT
    assert f"| `probe_budget_seconds` | {DEFAULTS.probe_budget_seconds:.0f} s in 15 min |" in TEXT
    assert f"| `fallback_seconds` | {DEFAULTS.fallback_seconds / 60:.0f} min |" in TEXT
    assert f"up to {DEFAULTS.search_permille} ‰" in TEXT
    assert f"up to {DEFAULTS.refine_permille} ‰" in TEXT
    assert f"{DEFAULTS.probe_bursts_a_minute:.0f} bursts a minute" in TEXT
    assert f"giving away {100 * DEFAULTS.search_loss:.0f} %" in TEXT
    assert f"bursts of {BURST_STEPS} steps" in TEXT
    assert ", ".join(bucket.label for bucket in BUCKETS) in TEXT
    spans = [f"{window.age_seconds} to {window.oldest_seconds}" for window in WINDOWS]
    assert f"{', '.join(spans[:-1])} and {spans[-1]} seconds ago" in TEXT


def test_the_server_s_bursts_are_as_long_as_the_operator_thinks() -> None:
    assert engine_probing.BURST_STEPS == BURST_STEPS


@pytest.mark.parametrize("page", ["tuning.md", "tuning-results.md"])
def test_the_measured_tables_are_on_the_page(page: str) -> None:
    begin, end = (f"<!-- written by hack/bench/tuner.py: {word} -->" for word in ("begin", "end"))
    written = (DOCS / page).read_text().split(begin)[1].split(end)[0]
    assert "| mean of 130 runs |" in written


def test_the_bounds_are_those_of_the_resource() -> None:
    default = DisableThreshold()
    assert f"| `min` | {default.min} |" in TEXT
    assert f"| `max` | {default.max} |" in TEXT
    assert f"| `batchSize` | {DEFAULT_BATCH_SIZE}, or the bound next to it |" in TEXT
    assert f"bounds {default.min} and {default.max}" in (DOCS / "tuning-results.md").read_text()

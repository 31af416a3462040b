"""docs/tuning.md tells what the code does: its example, its defaults, its settings."""

from __future__ import annotations

import pathlib

import pytest
from evidence import START, at, auto, decided, fresh

from sglang_operator.settings import PREFIX, Settings
from sglang_operator.tuning.exploration import CREDIT_IN_TRIALS
from sglang_operator.tuning.limits import DEFAULTS
from sglang_operator.tuning.policy import Move, decide
from sglang_operator.tuning.samples import BUCKETS

TEXT = " ".join((pathlib.Path(__file__).parents[3] / "docs" / "tuning.md").read_text().split())


def test_the_example_is_a_real_message() -> None:
    verdict = decide(auto(), fresh(at("49-64", on=5000, off=8000)), decided(65), START)
    assert isinstance(verdict, Move)
    assert verdict.decision.message in TEXT


@pytest.mark.parametrize("field", [name for name in Settings.model_fields if name.startswith("tuning_")])
def test_every_setting_is_listed_with_its_default(field: str) -> None:
    assert f"| `{PREFIX}{field.upper()}` | {Settings.model_fields[field].default} |" in TEXT


def test_the_constants_are_those_of_the_code() -> None:
    longest = DEFAULTS.longest_trial_seconds
    assert f"at least {100 * DEFAULTS.min_gain:.0f} % of throughput" in TEXT
    assert f"nothing moves for {DEFAULTS.dwell_seconds:.0f} s" in TEXT
    assert f"for at least {DEFAULTS.min_evidence_seconds:.0f} s" in TEXT
    assert f"after {longest:.0f} s without result" in TEXT
    assert f"once in {DEFAULTS.exploration_interval_seconds / 60:.0f} minutes" in TEXT
    assert f"{DEFAULTS.exploration_share} · L + {CREDIT_IN_TRIALS * longest:.0f} seconds" in TEXT
    assert ", ".join(bucket.label for bucket in BUCKETS) in TEXT

"""What is rendered, in full, for people to read and for changes to be seen.

A difference in a Deployment's pod template means that this version of the operator restarts every model of that
kind in every cluster. If that is meant: `pytest tests/golden --update-golden`, and say so in the changelog.
"""

from __future__ import annotations

import pytest
import yaml
from golden_support import GoldenCase, golden_cases

CASES = golden_cases()


def test_there_are_cases() -> None:
    assert len(CASES) >= 6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_manifests_are_as_expected(case: GoldenCase, update_golden: bool) -> None:
    text = yaml.safe_dump_all(case.render().manifests, sort_keys=False, width=120, allow_unicode=True)
    if update_golden:
        case.expected_file.write_text(text, encoding="utf-8")
    assert text == case.expected_file.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reading_the_file_gives_the_manifests(case: GoldenCase) -> None:
    read = yaml.safe_load_all(case.expected_file.read_text(encoding="utf-8"))
    assert tuple(read) == case.render().manifests

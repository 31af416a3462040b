"""The option that writes golden files anew: `pytest tests/golden --update-golden`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/*/expected.yaml from what is rendered now"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    # A run of the whole suite meets this file too late to know the option.
    return bool(request.config.getoption("--update-golden", default=False))

"""Option of the chart's tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-chart-snapshot",
        action="store_true",
        default=False,
        help="write tests/chart/snapshot.yaml anew from the chart",
    )

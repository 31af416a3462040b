"""The patch at work in the real classes of SGLang: worker, controller, result processor, live-update handler."""

from __future__ import annotations

from typing import Any

import pytest
from real_sglang import RELEASES, Workshop

pytestmark = [pytest.mark.engine, pytest.mark.timeout(360)]

DRIVEN = ("0.5.14", "0.5.16", "0.5.20", "0.5.22", "0.5.23")
"""One release of every layout, and the oldest and newest."""


@pytest.fixture(params=DRIVEN)
def seen(request: pytest.FixtureRequest, workshop: Workshop) -> dict[str, Any]:
    return workshop.observe("engine_drive.py", request.param) | {"release": request.param}


def test_the_driven_releases_are_known() -> None:
    assert set(DRIVEN) <= set(RELEASES)
    assert DRIVEN[-1] == RELEASES[-1]


def test_the_threshold_decides_each_step_in_the_real_worker(seen: dict[str, Any]) -> None:
    assert seen["built"] == [0], "a state for zero steps, beside the one that the server started with"
    assert seen["boundaries at 4"] == [3, 3, 0, 0, 3]
    assert seen["state after 5"] == [0, "target 0"]


def test_a_live_change_through_the_real_handler_counts_from_the_next_step(seen: dict[str, Any]) -> None:
    live = seen["live"]
    assert [live["0"], live["1"], live["3"], live["1000000"]] == [
        [3, 3, 3, 3, 3], [0, 0, 0, 0, 0], [3, 3, 0, 0, 0], [3, 3, 3, 3, 3],
    ]  # fmt: skip
    assert [live[f"{value} read back"] for value in (0, 1, 3, 1_000_000)] == [[0], [1], [3], [1_000_000]]


def test_bad_updates_are_refused_whole(seen: dict[str, Any]) -> None:
    assert len(seen["refused"]) == 22
    for updates, (answer, *read_back) in seen["refused"].items():
        assert read_back == [1_000_000, 0], f"{updates} must change nothing"
        assert answer is (seen["release"] == "0.5.14"), "the oldest release says yes to everything: read back"


def test_the_server_says_what_it_runs(seen: dict[str, Any]) -> None:
    assert seen["read back"] == {
        "generation": 2,
        "release": seen["release"],
        "active": True,
        "inactive_reason": None,
        "off_path": "ZeroStep",
        "off_path_reason": "chosen by --speculative-off-path zero-step",
        "verify_tile": "default",
    }


def test_probes_run_the_other_mode_in_the_real_worker(seen: dict[str, Any]) -> None:
    """At 500 of 1000 steps the first burst of 4 begins with the 8th step; at 0 there is none."""
    probes = seen["probes"]
    assert probes["read back"] == [33, 500], "both settings in one update"
    assert probes["steps"] == [3] * 7 + ([0] * 4 + [3] * 4) * 4 + [0]
    assert probes["after"] == [3] * 40


def test_a_decision_from_the_real_config_is_cheap(seen: dict[str, Any]) -> None:
    assert seen["probes"]["microseconds"] < 10


def test_a_batch_size_that_swings_does_not_grow_the_log_of_overrides(seen: dict[str, Any]) -> None:
    assert seen["override log"] <= 70


def test_tokens_and_time_are_counted_from_real_results(seen: dict[str, Any]) -> None:
    assert seen["counted"] == {"on 2": [2, 9, True]}


def test_a_users_adaptive_speculation_goes_on_below_the_threshold(seen: dict[str, Any]) -> None:
    own = seen["own adaptive"]
    assert 0 in own["candidates"]
    assert len(own["candidates"]) > 2
    assert own["below"] > 0
    assert (own["at"], own["below again"]) == (0, True)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("topk", "speculative_eagle_topk=4"),
        ("pipeline", "pp_size=2"),
        ("lora", "enable_lora=True"),
        ("no speculation", "no --speculative-algorithm"),
    ],
)
def test_what_can_not_obey_is_left_alone_and_says_why(seen: dict[str, Any], case: str, words: str) -> None:
    untouched, report = seen["inactive"][case]
    assert untouched
    assert report["active"] is False
    assert words in report["inactive_reason"]

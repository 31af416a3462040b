"""The text of the queries; what they yield is tested against a real Prometheus in tests/adapters."""

from __future__ import annotations

import itertools
import re
from dataclasses import astuple

import pytest

from sglang_operator.tuning.queries import build, literal_pattern, quote
from sglang_operator.tuning.samples import WINDOWS


def test_one_query_a_metric_holds_every_window_and_nothing_of_a_service() -> None:
    queries = build()
    newest, next_one, *_ = queries.seconds.split(" or label_replace(")
    assert newest == (
        "label_replace(sum by (namespace, pod, mode, batch_size) (max by (namespace, pod, dp_rank, mode, batch_size) ("
        "increase(sglang:spec_mode_seconds_total[30s]) or increase(sglang_spec_mode_seconds_total[30s]))) > 0, "
        '"window", "0+30", "", "")'
    )
    assert "increase(sglang:spec_mode_seconds_total[60s] offset 30s)" in next_one
    labels = re.findall(r'"window", "([0-9+]+)"', queries.seconds)
    assert labels == ["0+30", "30+60", "90+210", "300+600", "0+90"]
    assert queries.tokens == queries.seconds.replace("seconds_total", "tokens_total")
    assert queries.seconds_squared == queries.seconds.replace("seconds_total", "seconds_squared_total")
    assert queries.requests == queries.seconds.replace("seconds_total", "requests_total")
    assert queries.steps == queries.seconds.replace("seconds_total", "steps_total")
    assert re.findall(r'"window", "([0-9+]+)"', queries.probe_steps) == ["0+900"]
    assert queries.running_requests == (
        "sum by (namespace, pod) (max by (namespace, pod, dp_rank) ("
        "sglang:num_running_reqs or sglang_num_running_reqs))"
    )
    assert "min_over_time(sglang:num_queue_reqs[60s])" in queries.queued_requests
    assert all("{" not in query for query in astuple(queries))


def test_the_windows_meet_and_do_not_overlap() -> None:
    assert WINDOWS[0].age_seconds == 0
    for newer, older in itertools.pairwise(WINDOWS):
        assert older.age_seconds == newer.oldest_seconds


def test_namespaces_are_a_pattern_on_every_selector() -> None:
    for query in astuple(build(namespaces=("b", "a", "a"))):
        selectors = re.findall(r'(?<!")sglang[:_][a-z_]+(.{20})', query)
        assert selectors
        assert set(selectors) == {'{namespace=~"a|b"}' + selector[-2:] for selector in selectors}


@pytest.mark.parametrize(
    ("text", "quoted"), [("a", '"a"'), ('"', '"\\""'), ("\\", '"\\\\"'), ("a\nb", '"a\\nb"'), ("{}", '"{}"')]
)
def test_quoting(text: str, quoted: str) -> None:
    assert quote(text) == quoted


@pytest.mark.parametrize("text", ["a.b", "a|b", "(x)*", "[a-z]+", "^$", "a{1}", "\\d", "plain-name"])
def test_a_literal_pattern_matches_only_its_text(text: str) -> None:
    pattern = literal_pattern(text)
    assert re.fullmatch(pattern, text)
    assert not re.fullmatch(pattern, text + "x")
    assert not re.fullmatch(pattern, "axb")

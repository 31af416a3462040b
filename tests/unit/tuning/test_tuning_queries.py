"""The text of the queries; what they yield is tested against a real Prometheus in tests/adapters."""

from __future__ import annotations

import re
from dataclasses import astuple

import pytest

from sglang_operator.tuning.queries import build, literal_pattern, quote


def test_one_query_a_metric_and_nothing_of_a_service() -> None:
    queries = build(evidence_window_seconds=900, recent_window_seconds=60)
    assert queries.seconds == (
        "sum by (namespace, pod, mode, batch_size) (max by (namespace, pod, dp_rank, mode, batch_size) ("
        "increase(sglang:spec_mode_seconds_total[900s]) or increase(sglang_spec_mode_seconds_total[900s])))"
    )
    assert queries.tokens == queries.seconds.replace("seconds_total", "tokens_total")
    assert queries.recent_seconds == queries.seconds.replace("[900s]", "[60s]")
    assert queries.running_requests == (
        "sum by (namespace, pod) (max by (namespace, pod, dp_rank) ("
        "sglang:num_running_reqs or sglang_num_running_reqs))"
    )
    assert all("{" not in query for query in astuple(queries))


def test_namespaces_are_a_pattern_on_every_selector() -> None:
    queries = build(evidence_window_seconds=900, recent_window_seconds=60, namespaces=("b", "a", "a"))
    for query in astuple(queries):
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

"""Names of children: within Kubernetes' limits, and never two services with one child."""

from __future__ import annotations

import re

import pytest

from sglang_operator.api.names import child_name

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize("suffix", ["", "threshold", "specpatch-0123abcd"])
@pytest.mark.parametrize(
    "service", ["a", "a" * 40, "a" * 52, "a" * 63, "a" * 253, "a-" * 31 + "b", "a.b", "a." * 99 + "b"]
)
def test_child_names_are_dns_labels(service: str, suffix: str) -> None:
    name = child_name(service, suffix)
    assert DNS_LABEL.fullmatch(name)
    assert name.endswith(suffix)
    assert name == child_name(service, suffix)


def test_short_names_are_kept() -> None:
    assert child_name("llama") == "llama"
    assert child_name("llama", "threshold") == "llama-threshold"


def test_services_that_differ_late_have_different_children() -> None:
    first, second = ("x" * 60 + end for end in ("aaa", "bbb"))
    assert child_name(first, "threshold") != child_name(second, "threshold")
    assert child_name("a.b") != child_name("a-b")

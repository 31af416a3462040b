"""NOTES.txt: what a person reads after `helm install`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from helmchart import CHART, NAMESPACE, RELEASE, Values, helm

from sglang_operator.api.names import API_VERSION, KIND
from sglang_operator.api.v1alpha1 import parse_spec

PROMETHEUS: Values = {"prometheus": {"url": "http://prometheus.monitoring.svc:9090"}}


def notes(values: Values) -> str:
    output = helm(
        "install",
        RELEASE,
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--dry-run=client",
        "--create-namespace",
        values=values,
    )
    return output.split("\nNOTES:\n", 1)[1]


def example(text: str) -> dict[str, Any]:
    found = re.search(r"<<'EOF'\n(.*?)\n *EOF\n", text, re.DOTALL)
    assert found, text
    manifest: dict[str, Any] = yaml.safe_load(found[1])
    return manifest


@pytest.mark.parametrize(("values", "namespace"), [(PROMETHEUS, "default"), ({"watchNamespaces": ["b", "a"]}, "b")])
def test_next_command_makes_a_valid_service_that_is_served(values: Values, namespace: str) -> None:
    text = notes(values)
    manifest = example(text)
    assert (manifest["apiVersion"], manifest["kind"]) == (API_VERSION, KIND)
    assert manifest["metadata"]["namespace"] == namespace
    parse_spec(manifest["spec"])
    assert f"kubectl -n {namespace} wait --for=condition=Ready sgsvc/{manifest['metadata']['name']}" in text


def test_says_what_is_served() -> None:
    assert "in all namespaces." in notes(PROMETHEUS)
    assert "in the namespaces team-a, team-b." in notes({"watchNamespaces": ["team-a", "team-b"]})


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({}, "WARNING: prometheus.url is empty."),
        ({**PROMETHEUS, "crds": {"keep": False}}, "WARNING: crds.keep is false."),
        ({**PROMETHEUS, "crds": {"install": False}}, "NOTE: crds.install is false."),
        ({**PROMETHEUS, "rbac": {"create": False}}, "WARNING: rbac.create is false."),
    ],
)
def test_warnings(values: Values, warning: str) -> None:
    assert next(line for line in notes(values).splitlines() if re.match("WARNING|NOTE", line)).startswith(warning)


def test_no_warning_without_cause() -> None:
    assert not re.search("WARNING|NOTE:", notes(PROMETHEUS))

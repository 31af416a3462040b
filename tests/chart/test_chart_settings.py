"""Each setting of the operator is a value of the chart, with the same bounds, and reaches the operator's process."""

from __future__ import annotations

from typing import Any

import pytest
from helmchart import CHART, EVERYTHING, NAMESPACE, HelmRefused, operator_environment, render

import chart_values
from sglang_operator.settings import PREFIX, Settings, from_environment

DERIVED = {
    "namespace": "the pod's own namespace",
    "prometheus_bearer_token_file": "the mount of prometheus.bearerToken",
    "prometheus_ca_file": "the mount of prometheus.ca",
}


def settings_of_values() -> dict[str, chart_values.Value]:
    found: dict[str, chart_values.Value] = {}

    def walk(values: tuple[chart_values.Value, ...]) -> None:
        for value in values:
            if value.setting:
                assert value.setting not in found, f"{value.setting} is set by two values"
                found[value.setting] = value
            walk(value.children)

    walk(chart_values.read_values((CHART / "values.yaml").read_text()))
    return found


BOUNDED = {
    name: (value.path, declared["minimum"], declared["maximum"])
    for name, value in settings_of_values().items()
    if "minimum" in (declared := Settings.model_json_schema()["properties"][name])
}


def nested(path: str, leaf: object) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: nested(rest, leaf) if rest else leaf}


def test_each_setting_is_a_value() -> None:
    assert set(settings_of_values()) | set(DERIVED) == set(Settings.model_fields)


def test_defaults_are_the_settings_own() -> None:
    environment = operator_environment(render())
    assert from_environment(environment) == Settings(namespace=NAMESPACE)
    # What stands there is seen by `kubectl describe`: nothing is left to the process's own defaults.
    unset = {name for name in Settings.model_fields if PREFIX + name.upper() not in environment}
    assert unset == {"prometheus_bearer_token_file", "prometheus_ca_file"}


def test_each_value_reaches_the_process() -> None:
    settings = from_environment(operator_environment(render(EVERYTHING)))
    expected = Settings(
        namespace=NAMESPACE,
        watch_namespaces=("team-a", "team-b"),
        prometheus_url="https://prometheus.example:9443/prefix",
        prometheus_timeout_seconds=7,
        prometheus_bearer_token_file="/etc/sglang-operator/prometheus-token/token",
        prometheus_ca_file="/etc/sglang-operator/prometheus-ca/ca.crt",
        metrics_max_age_seconds=61,
        tuning_interval_seconds=11,
        tuning_dwell_seconds=31,
        resync_interval_seconds=63,
        engine_timeout_seconds=6,
        max_parallel_passes=8,
        health_port=8081,
        metrics_port=9091,
    )
    assert settings == expected
    default = Settings()
    assert all(getattr(expected, name) != getattr(default, name) for name in Settings.model_fields)


def test_bounded_settings_exist() -> None:
    assert len(BOUNDED) >= 9


@pytest.mark.parametrize("end", [0, 1], ids=["smallest", "largest"])
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_are_taken(name: str, end: int) -> None:
    path, *bounds = BOUNDED[name]
    value = bounds[end]
    environment = operator_environment(render(nested(path, value)))
    assert environment[PREFIX + name.upper()] == str(value)
    assert getattr(from_environment(environment), name) == value


@pytest.mark.parametrize(("end", "step"), [(0, -1), (1, 1)], ids=["below", "above"])
@pytest.mark.parametrize("name", BOUNDED)
def test_values_outside_the_bounds_are_refused(name: str, end: int, step: int) -> None:
    path, *bounds = BOUNDED[name]
    value = bounds[end] + step
    with pytest.raises(HelmRefused) as refusal:
        render(nested(path, value))
    assert f"at '/{path.replace('.', '/')}'" in str(refusal.value)


def test_service_account_token_for_prometheus() -> None:
    objects = render({"prometheus": {"bearerToken": {"from": "ServiceAccount"}}})
    settings = from_environment(operator_environment(objects))
    assert settings.prometheus_bearer_token_file == "/var/run/secrets/kubernetes.io/serviceaccount/token"

"""Runs helm on the chart, for tests: renders it with values and finds objects in the result."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import generate_chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "sglang-operator"
RELEASE = "sglang-operator"
NAMESPACE = "sglang-operator-system"

HELM = generate_chart.helm_binary()
"""Found, or built, when tests are collected: outside of any test's time limit."""
HELM_SECONDS = 60

Manifest = dict[str, Any]
Values = Mapping[str, Any]


class HelmRefused(AssertionError):
    """helm ended with an error; the message is what it printed."""


def helm(*arguments: str, values: Values | str | None = None, kubeconfig: Path | None = None) -> str:
    """Run helm and return its standard output. `values` go in as a file: a mapping, or YAML text as it is.

    Raises:
        HelmRefused: helm ended with an error.
    """
    command = [HELM, *arguments]
    text = None
    if values is not None:
        command += ["--values", "-"]
        text = values if isinstance(values, str) else yaml.safe_dump(dict(values))
    # Nothing but an explicit cluster may be reached.
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    done = subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, timeout=HELM_SECONDS, check=False
    )
    if done.returncode != 0:
        raise HelmRefused(done.stderr)
    return done.stdout


def render(values: Values | str | None = None, *arguments: str, release: str = RELEASE) -> list[Manifest]:
    """Render the chart, test hooks included.

    Raises:
        HelmRefused: the values are refused.
    """
    text = values if isinstance(values, str | None) else yaml.safe_dump(dict(values))
    return [item for item in yaml.safe_load_all(_template(text, arguments, release)) if item]


@cache
def _template(values: str | None, arguments: tuple[str, ...], release: str) -> str:
    """The chart doesn't change while its tests run, and many of them look at the same values."""
    return helm("template", release, str(CHART), "--namespace", NAMESPACE, *arguments, values=values)


def find(objects: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """Return the one object of this kind (and name). Fails when there is none, or more than one."""
    found = [item for item in objects if item["kind"] == kind and name in (None, item["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} and name {name}, not one"
    return found[0]


def kinds(objects: list[Manifest]) -> list[str]:
    """Return the kinds of all objects, sorted."""
    return sorted(item["kind"] for item in objects)


def pod_template(objects: list[Manifest]) -> Manifest:
    """Return the operator's pod template."""
    template: Manifest = find(objects, "Deployment")["spec"]["template"]
    return template


def operator_environment(objects: list[Manifest]) -> dict[str, str]:
    """Return the operator's environment as its process sees it: the downward API filled in."""
    (container,) = pod_template(objects)["spec"]["containers"]
    environment = {}
    for variable in container["env"]:
        if "valueFrom" in variable:
            assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
            environment[variable["name"]] = find(objects, "Deployment")["metadata"]["namespace"]
        else:
            environment[variable["name"]] = variable["value"]
    return environment


EVERYTHING: Values = {
    "watchNamespaces": ["team-a", "team-b"],
    "prometheus": {
        "url": "https://prometheus.example:9443/prefix",
        "timeoutSeconds": 7,
        "maxAgeSeconds": 61,
        "bearerToken": {"from": "Secret", "secretName": "prometheus-reader", "key": "bearer"},
        "ca": {"configMapName": "company-ca", "key": "bundle.pem"},
    },
    "tuning": {
        "intervalSeconds": 11,
        "dwellSeconds": 31,
    },
    "resyncIntervalSeconds": 63,
    "engineTimeoutSeconds": 6,
    "maxParallelPasses": 8,
    "healthPort": 8081,
    "metrics": {
        "port": 9091,
        "service": {"annotations": {"example.org/team": "ml"}},
        "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
    },
    "rbac": {"create": True, "readSecrets": True, "aggregatedRoles": True},
    "serviceAccount": {"name": "runner", "annotations": {"example.org/role": "operator"}},
    "image": {
        "repository": "registry.example:5000/mirror/sglang-operator",
        "digest": "sha256:" + "0123456789abcdef" * 4,
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "mirror"}],
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": "1.5", "memory": "2Gi"}},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "infra", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}]}
                ]
            }
        }
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "system-cluster-critical",
    "podSecurityContext": {"runAsUser": 1000800000, "runAsGroup": 0, "fsGroup": 1000},
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "podLabels": {"team": "ml"},
    "commonLabels": {"cost-centre": "42"},
    "commonAnnotations": {"example.org/owner": "ml"},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "prometheusPorts": [9443],
        "extraEgress": [{"ports": [{"port": 3128, "protocol": "TCP"}]}],
    },
}
"""Every optional part switched on, and every value another than its default."""

NOTHING: Values = {
    "crds": {"install": False},
    "rbac": {"create": False, "readSecrets": False, "aggregatedRoles": False},
    "serviceAccount": {"create": False},
    "metrics": {"service": {"enabled": False}},
}
"""Every optional part switched off: what remains is the Deployment."""

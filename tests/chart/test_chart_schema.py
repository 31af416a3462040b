"""What `values.schema.json` and the chart's own checks refuse, and that the sentence names the value."""

from __future__ import annotations

import pytest
from helmchart import HelmRefused, operator_environment, pod_template, render

REFUSED = {
    "typo at the root": ("promethues: {url: 'http://p:9090'}", "additional properties 'promethues' not allowed"),
    "typo below": ("prometheus: {uri: 'http://p:9090'}", "at '/prometheus'"),
    "typo two levels below": ("prometheus: {bearerToken: {secret: x}}", "at '/prometheus/bearerToken'"),
    "typo in resources": ("resources: {limit: {memory: 1Gi}}", "at '/resources'"),
    "typo in a toleration": ("tolerations: [{kee: x}]", "at '/tolerations/0'"),
    "typo in affinity": ("affinity: {nodeaffinity: {}}", "at '/affinity'"),
    "one level too high": ("intervalSeconds: 5", "additional properties 'intervalSeconds' not allowed"),
    "snake case": ("watch_namespaces: [a]", "additional properties 'watch_namespaces' not allowed"),
    "replicas": ("replicas: 2", "additional properties 'replicas' not allowed"),
    "tag as a number": ("image: {tag: 20250916}", "at '/image/tag'"),
    "tag as a decimal": ("image: {tag: 1.10}", "at '/image/tag'"),
    "tag latest": ("image: {tag: latest}", "image.tag must not be latest: name a version, or set image.digest"),
    "tag in the repository": ("image: {repository: 'ghcr.io/x/y:1.0'}", "at '/image/repository'"),
    "digest without its kind": (f"image: {{digest: '{'0' * 64}'}}", "at '/image/digest'"),
    "url without a scheme": ("prometheus: {url: 'prometheus:9090'}", "at '/prometheus/url'"),
    "url with another scheme": ("prometheus: {url: 'ftp://prometheus'}", "at '/prometheus/url'"),
    "number as text": ("maxParallelPasses: '8'", "at '/maxParallelPasses'"),
    "number with a fraction": ("maxParallelPasses: 2.5", "at '/maxParallelPasses'"),
    "not a number": ("maxParallelPasses: .nan", ""),
    "truth as text": ("crds: {keep: 'on'}", "at '/crds/keep'"),
    "truth as a number": ("networkPolicy: {enabled: 1}", "at '/networkPolicy/enabled'"),
    "namespaces as text": ("watchNamespaces: a,b", "at '/watchNamespaces'"),
    "namespace with a comma": ("watchNamespaces: ['a,b']", "at '/watchNamespaces/0'"),
    "namespace with capitals": ("watchNamespaces: [Team]", "at '/watchNamespaces/0'"),
    "namespace twice": ("watchNamespaces: [a, a]", "at '/watchNamespaces'"),
    "annotation that is no text": (
        "podAnnotations: {prometheus.io/scrape: true}",
        "at '/podAnnotations/prometheus.io~1scrape'",
    ),
    "label that is no text": ("podLabels: {build: 42}", "at '/podLabels/build'"),
    "pull secret as text": ("imagePullSecrets: [mirror]", "at '/imagePullSecrets/0'"),
    "bad quantity": ("resources: {limits: {memory: 512mb}}", "at '/resources/limits/memory'"),
    "root user": ("podSecurityContext: {runAsUser: 0}", "at '/podSecurityContext/runAsUser'"),
    "restricted profile off": ("podSecurityContext: {runAsNonRoot: false}", "at '/podSecurityContext'"),
    "unknown token source": ("prometheus: {bearerToken: {from: File}}", "at '/prometheus/bearerToken/from'"),
    "token Secret without a name": (
        "prometheus: {bearerToken: {from: Secret}}",
        "prometheus.bearerToken.secretName must be set when prometheus.bearerToken.from is Secret",
    ),
    "token Secret that is not used": (
        "prometheus: {bearerToken: {secretName: x}}",
        "prometheus.bearerToken.from must be Secret when prometheus.bearerToken.secretName is set",
    ),
    "one port for two": ("healthPort: 9090", "healthPort and metrics.port must differ; both are 9090"),
    "two monitors": (
        "metrics: {podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}",
        "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled must not both be true",
    ),
    "monitor without its Service": (
        "metrics: {service: {enabled: false}, serviceMonitor: {enabled: true}}",
        "metrics.service.enabled must be true when metrics.serviceMonitor.enabled is",
    ),
}


@pytest.mark.parametrize(("values", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(values: str, sentence: str) -> None:
    with pytest.raises(HelmRefused) as refusal:
        render(values)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("written", ["16", "16.0", "1.6e1", "0x10"])
def test_numbers_reach_the_process_as_plain_decimals(written: str) -> None:
    environment = operator_environment(render(f"maxParallelPasses: {written}"))
    assert environment["SGLANG_OPERATOR_MAX_PARALLEL_PASSES"] == "16"


def test_large_number_from_the_command_line() -> None:
    environment = operator_environment(render(None, "--set", "tuning.dwellSeconds=3600"))
    assert environment["SGLANG_OPERATOR_TUNING_DWELL_SECONDS"] == "3600"


def test_tag_of_digits_from_the_command_line() -> None:
    with pytest.raises(HelmRefused, match="at '/image/tag'"):
        render(None, "--set", "image.tag=20250916")
    (container,) = pod_template(render(None, "--set-string", "image.tag=20250916"))["spec"]["containers"]
    assert container["image"].endswith(":20250916")


def test_part_of_another_chart() -> None:
    # Helm hands `global` down to the parts of a chart, whether they use it or not.
    assert render("global: {imageRegistry: registry.example}")

"""What the chart makes of its values."""

from __future__ import annotations

import pytest
from helmchart import (
    EVERYTHING,
    NAMESPACE,
    NOTHING,
    RELEASE,
    Manifest,
    Values,
    find,
    kinds,
    pod_template,
    render,
)

CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def operator_roles(objects: list[Manifest]) -> list[Manifest]:
    """The roles bound to the operator, not those for people."""
    bound = [item["roleRef"] for item in objects if item["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    names = {(reference["kind"], reference["name"]) for reference in bound}
    return [item for item in objects if (item["kind"], item["metadata"]["name"]) in names]


def test_default_kinds() -> None:
    assert kinds(render()) == [
        "ClusterRole",
        "ClusterRole",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "Deployment",
        "Pod",
        "Service",
        "ServiceAccount",
    ]


def test_everything_switched_off_leaves_the_deployment() -> None:
    objects = render(NOTHING)
    assert kinds(objects) == ["Deployment", "Pod"]
    assert pod_template(objects)["spec"]["serviceAccountName"] == "default"


def test_cluster_scope_uses_no_role() -> None:
    objects = render()
    (role,) = operator_roles(objects)
    assert role["kind"] == "ClusterRole"
    assert not [item for item in objects if item["kind"] in ("Role", "RoleBinding")]


def test_namespaces_get_a_role_each_and_nothing_in_the_cluster() -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    for kind in ("Role", "RoleBinding"):
        found = [item["metadata"]["namespace"] for item in objects if item["kind"] == kind]
        assert found == ["team-a", "team-b"]
    assert {role["kind"] for role in operator_roles(objects)} == {"Role"}
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    bindings = [item for item in objects if item["kind"] == "RoleBinding"]
    account = {"kind": "ServiceAccount", "name": RELEASE, "namespace": NAMESPACE}
    assert all(binding["subjects"] == [account] for binding in bindings)


def test_roles_are_the_same_in_both_scopes() -> None:
    (cluster,) = operator_roles(render())
    for role in operator_roles(render({"watchNamespaces": ["team-a", "team-b"]})):
        assert role["rules"] == cluster["rules"]


def test_second_operator_shares_nothing_in_the_cluster() -> None:
    values = {"watchNamespaces": ["team-a"], "crds": {"install": False}, "rbac": {"aggregatedRoles": False}}
    assert not CLUSTER_SCOPED & set(kinds(render(values)))


def test_people_get_the_custom_resource_by_their_usual_roles() -> None:
    objects = render()
    view, edit = find(objects, "ClusterRole", f"{RELEASE}-view"), find(objects, "ClusterRole", f"{RELEASE}-edit")
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {group for role in (view, edit) for rule in role["rules"] for group in rule["apiGroups"]} == {
        "serving.sglang-operator.io"
    }
    # The status is the operator's word.
    assert "inferenceservices/status" not in {resource for rule in edit["rules"] for resource in rule["resources"]}


@pytest.mark.parametrize(("keep", "policy"), [(True, "keep"), (False, None)])
def test_crd_outlives_the_release_unless_told_otherwise(keep: bool, policy: str | None) -> None:
    crd = find(render({"crds": {"keep": keep}}), "CustomResourceDefinition")
    assert crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == policy


def test_crd_is_a_template() -> None:
    # Helm installs a crds/ folder once and never upgrades it.
    assert find(render(), "CustomResourceDefinition")
    assert "CustomResourceDefinition" not in kinds(render({"crds": {"install": False}}, "--include-crds"))


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"metrics": {"podMonitor": {"enabled": True}}}, NOTHING])
def test_nothing_delays_or_blocks_install_and_uninstall(values: Values) -> None:
    for item in render(values):
        hook = item["metadata"].get("annotations", {}).get("helm.sh/hook")
        assert hook == ("test" if item["kind"] == "Pod" else None)
        assert "finalizers" not in item["metadata"]


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"metrics": {"podMonitor": {"enabled": True}}}])
def test_labels(values: Values) -> None:
    objects = render(values)
    for item in objects:
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "sglang-operator"
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/version"] == "0.1.0"
        assert labels["helm.sh/chart"] == "sglang-operator-0.1.0"
        assert item["metadata"].get("namespace") or item["kind"] in CLUSTER_SCOPED
    selector = find(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert set(selector) == {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")}
    assert selector.items() <= pod_template(objects)["metadata"]["labels"].items()
    # The test pod must get no scrapes and count for no Deployment.
    assert not selector.items() <= find(objects, "Pod")["metadata"]["labels"].items()


def test_further_labels_and_annotations_are_everywhere() -> None:
    for item in [*(objects := render(EVERYTHING)), pod_template(objects)]:
        assert item["metadata"]["labels"]["cost-centre"] == "42"
        assert item["metadata"]["annotations"]["example.org/owner"] == "ml"


def test_further_labels_break_no_selector() -> None:
    broken = {"app.kubernetes.io/name": "mine", "app.kubernetes.io/component": "mine"}
    objects = render({"commonLabels": broken, "podLabels": broken})
    labels = pod_template(objects)["metadata"]["labels"]
    assert find(objects, "Deployment")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["app.kubernetes.io/name"] == "sglang-operator"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "ghcr.io/sglang-operator/sglang-operator:0.1.0"),
        ({"tag": "20250916"}, "ghcr.io/sglang-operator/sglang-operator:20250916"),
        ({"repository": "localhost:5000/op", "tag": "dev"}, "localhost:5000/op:dev"),
        ({"tag": "1", "digest": "sha256:" + "ab" * 32}, "ghcr.io/sglang-operator/sglang-operator@sha256:" + "ab" * 32),
    ],
)
def test_image(image: dict[str, str], expected: str) -> None:
    objects = render({"image": image})
    assert pod_template(objects)["spec"]["containers"][0]["image"] == expected
    assert find(objects, "Pod")["spec"]["containers"][0]["image"] == expected


def test_one_operator_at_a_time() -> None:
    spec = find(render(EVERYTHING), "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_service_leads_to_the_metrics_port() -> None:
    objects = render({"metrics": {"port": 9091}})
    service = find(objects, "Service")
    assert service["spec"]["selector"].items() <= pod_template(objects)["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    ports = {port["name"]: port["containerPort"] for port in pod_template(objects)["spec"]["containers"][0]["ports"]}
    assert (port["port"], ports[port["targetPort"]]) == (9091, 9091)


def test_monitors_find_what_they_scrape() -> None:
    objects = render(EVERYTHING)
    monitor, service = find(objects, "ServiceMonitor"), find(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    objects = render({"metrics": {"podMonitor": {"enabled": True, "labels": {"release": "x"}}}})
    monitor = find(objects, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod_template(objects)["metadata"]["labels"].items()
    names = [port["name"] for port in pod_template(objects)["spec"]["containers"][0]["ports"]]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in names
    assert monitor["metadata"]["labels"]["release"] == "x"


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://prometheus.monitoring.svc:9090", 9090),
        ("https://thanos.example/query", 443),
        ("http://thanos.example", 80),
        ("http://[fd00::1]:9091/x", 9091),
    ],
)
def test_network_policy_lets_prometheus_be_asked(url: str, port: int) -> None:
    policy = find(render({"prometheus": {"url": url}, "networkPolicy": {"enabled": True}}), "NetworkPolicy")
    assert {"ports": [{"port": port, "protocol": "TCP"}]} in policy["spec"]["egress"]


def test_network_policy_lets_the_operator_work() -> None:
    objects = render(EVERYTHING)
    policy = find(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod_template(objects)["metadata"]["labels"].items()
    ports = [{(port["port"], port["protocol"]) for port in rule.get("ports", [])} for rule in policy["egress"]]
    assert ports == [
        {(53, "UDP"), (53, "TCP")},
        {(443, "TCP"), (6443, "TCP")},
        set(),
        {(9443, "TCP")},
        {(3128, "TCP")},
    ]
    served = {"key": "serving.sglang-operator.io/service", "operator": "Exists"}
    assert policy["egress"][2]["to"][0]["podSelector"]["matchExpressions"] == [served]
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == ["health", "metrics"]
    assert policy["ingress"][1]["from"] == EVERYTHING["networkPolicy"]["metricsFrom"]


def test_pod_goes_where_it_is_told() -> None:
    spec = pod_template(render(EVERYTHING))["spec"]
    for name in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName"):
        assert spec[name] == EVERYTHING[name]
    assert spec["imagePullSecrets"] == [{"name": "mirror"}]
    assert spec["containers"][0]["resources"] == EVERYTHING["resources"]


@pytest.mark.parametrize("release", ["a", "sglang-operator", "x" * 53])
def test_names_fit(release: str) -> None:
    for item in render(EVERYTHING, release=release):
        assert len(item["metadata"]["name"]) <= 63 or item["kind"] == "CustomResourceDefinition"
        assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())


def test_releases_of_other_names_share_no_object() -> None:
    def identities(release: str) -> set[tuple[str, str]]:
        objects = render({"crds": {"install": False}}, release=release)
        return {(item["kind"], item["metadata"]["name"]) for item in objects}

    assert not identities("one") & identities("two")

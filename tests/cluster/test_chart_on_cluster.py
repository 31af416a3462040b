"""The chart's life on a real cluster: upgrade, uninstall, namespace scope; and deletes that never hang."""

from __future__ import annotations

import pytest

import deploy
from localcluster.client import RESOURCE, LocalCluster
from localcluster.eventually import eventually
from services import Service, fixed, identity, manifest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]


def uninstall(cluster: LocalCluster) -> None:
    cluster.helm("uninstall", deploy.RELEASE, "--namespace", deploy.NAMESPACE, "--wait", "--timeout", "60s")


def test_uninstall_and_install_leave_services_running(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(**fixed(8)))
    service.await_ready()
    before = [identity(pod) for pod in service.pods()]
    uninstall(installed)
    try:
        assert installed.get("crd", RESOURCE)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert [identity(pod) for pod in service.pods()] == before
        service.patch(fixed(12))
    finally:
        deploy.install_operator(installed)
    service.await_servers(12, within_seconds=60)
    assert [identity(pod) for pod in service.pods()] == before


def test_an_operator_upgrade_rolls_no_pod(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(**fixed(8)))
    service.await_ready()
    before = [identity(pod) for pod in service.pods()]
    revision = service.get()["status"]["revision"]
    deploy.install_operator(installed, resyncIntervalSeconds=20, maxParallelPasses=2)
    try:
        service.await_condition("ThresholdSynced", "True", within_seconds=60)
        assert [identity(pod) for pod in service.pods()] == before
        assert service.get()["status"]["revision"] == revision
    finally:
        deploy.install_operator(installed)


def test_a_namespaced_operator_serves_its_namespace_alone(installed: LocalCluster, namespace: str) -> None:
    with installed.namespace("elsewhere") as elsewhere:
        deploy.install_operator(installed, watchNamespaces=[namespace])
        try:
            served, ignored = Service(installed, namespace), Service(installed, elsewhere)
            served.apply(manifest(**fixed(8)))
            ignored.apply(manifest(**fixed(8)))
            served.await_ready()
            assert "status" not in ignored.get()
            account = f"system:serviceaccount:{deploy.NAMESPACE}:sglang-operator"
            for where, allowed in ((namespace, "yes"), (elsewhere, "no")):
                answer = installed.run(
                    "sh", "-c", f"kubectl auth can-i patch deployments -n {where} --as {account} || true"
                )
                assert answer.strip() == allowed
        finally:
            deploy.install_operator(installed)


def test_deleting_a_service_takes_its_children_with_it(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(**fixed(8)))
    service.await_ready()
    installed.kubectl("delete", RESOURCE, "llama", "-n", namespace, "--timeout=30s")

    def left() -> list[str]:
        found = installed.items(
            "deployments,services,configmaps,pods", "-n", namespace, "-l", "serving.sglang-operator.io/service"
        )
        return [f"{item['kind']}/{item['metadata']['name']}" for item in found]

    eventually(left, lambda names: names == [], within_seconds=90, what="no child left")


def test_deletes_do_not_hang_without_an_operator(installed: LocalCluster) -> None:
    uninstall(installed)
    try:
        with installed.namespace("orphans") as namespace:
            service = Service(installed, namespace)
            service.apply(manifest(**fixed(8)))
            installed.kubectl("delete", RESOURCE, "llama", "-n", namespace, "--timeout=20s")
            service.apply(manifest(**fixed(8)))
        # Leaving the block deleted the namespace with a service in it, and awaited its end.
    finally:
        deploy.install_operator(installed)


def test_the_charts_own_test_passes(installed: LocalCluster) -> None:
    installed.helm("test", deploy.RELEASE, "--namespace", deploy.NAMESPACE, "--timeout", "90s")

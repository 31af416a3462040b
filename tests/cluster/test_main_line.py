"""The main job on a real cluster: a service starts patched and proven, and its threshold changes while it serves."""

from __future__ import annotations

import contextlib
import time

import pytest

from localcluster.client import RESOURCE, CommandFailed, LocalCluster, conditions
from localcluster.eventually import eventually
from services import Service, fixed, identity, manifest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

CONDITIONS = {
    *("Ready", "SpecValid", "Scheduled", "PatchVerified", "Serving", "UpToDate"),
    *("MetricsAvailable", "ThresholdSynced", "Degraded"),
}


def test_a_service_starts_patched_and_its_threshold_follows_the_load(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(gpus=8))
    eventually(lambda: set(conditions(service.get())) == CONDITIONS, within_seconds=20, what="all conditions")
    stored = service.await_ready()

    (pod,) = service.pods()
    engine = pod["spec"]["containers"][0]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "8"
    node = installed.get("node", pod["spec"]["nodeName"])
    assert node["metadata"]["labels"]["nvidia.com/gpu.compute.major"] == "12"
    assert "server_args OK" in service.log(pod["metadata"]["name"], "patch").splitlines()
    verified = conditions(stored)["PatchVerified"]
    assert (verified["status"], verified["reason"]) == ("True", "Patched")
    assert stored["status"]["engineRelease"] == "0.5.23"

    first = stored["status"]["threshold"]["batchSize"]
    assert service.boot_value() == first
    assert set(service.server_values()[pod["metadata"]["name"]]) == {first}

    # The sample starts at 8; at 24 requests drafting is a fifth faster.
    service.start_load("24:100")
    moved = eventually(
        lambda: service.get()["status"]["threshold"],
        lambda threshold: threshold["batchSize"] != first,
        within_seconds=90,
        what="a threshold that follows the load",
    )
    assert moved["batchSize"] > 24
    assert moved["source"] == "Measured"
    assert moved["evidence"]["draftingTokensPerSecond"] > moved["evidence"]["notDraftingTokensPerSecond"]
    value = eventually(
        lambda: (service.get()["status"]["threshold"]["batchSize"], service.boot_value(), service.server_values()),
        lambda seen: seen[0] == seen[1] and set(seen[2][pod["metadata"]["name"]]) == {seen[0]},
        within_seconds=20,
        what="status, ConfigMap and server with the same value",
    )
    assert value[0] != first
    assert [identity(now) for now in service.pods()] == [identity(pod)]
    changes = installed.items("events", "-n", namespace, "--field-selector", "reason=ThresholdChanged")
    assert len(changes) >= 2


def test_a_fixed_value_is_pushed_to_every_pod_without_a_restart(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(**fixed(8)))
    service.await_ready()
    installed.kubectl("scale", f"{RESOURCE}/llama", "-n", namespace, "--replicas=2")
    eventually(lambda: len(service.pods()) == 2, within_seconds=30, what="two pods, by the scale subresource")
    service.await_ready()
    before = {pod["metadata"]["name"]: identity(pod) for pod in service.pods()}
    for batch_size in (4, 0, 1, 96):
        service.patch(fixed(batch_size))
        service.await_servers(batch_size, within_seconds=15)
        service.await_condition("ThresholdSynced", "True", within_seconds=15)
        assert service.boot_value() == batch_size
    assert {pod["metadata"]["name"]: identity(pod) for pod in service.pods()} == before
    assert service.get()["status"]["threshold"]["syncedPods"] == 2
    table = installed.kubectl("get", "sgsvc", "-n", namespace)
    header, row = (line.split() for line in table.splitlines()[:2])
    assert header == ["NAME", "MODEL", "GPUS", "REPLICAS", "THRESHOLD", "READY", "REASON", "AGE"]
    assert row[:7] == ["llama", "/models/target", "2", "2", "96", "True", "Available"]


def test_a_restarted_server_has_the_last_value_before_the_operator_speaks(
    installed: LocalCluster, namespace: str
) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(**fixed(8)))
    service.await_ready()
    service.patch(fixed(24))
    service.await_servers(24, within_seconds=15)
    service.await_condition("ThresholdSynced", "True", within_seconds=15)
    (pod,) = service.pods()
    operator = ("deployment/sglang-operator", "-n", "sglang-operator-system")
    installed.kubectl("scale", *operator, "--replicas=0")
    try:
        with contextlib.suppress(CommandFailed):  # the server ends before it can answer
            service.fault(pod["metadata"]["name"], crash=True)
        restarts = identity(pod)[1]
        eventually(
            lambda: identity(service.pods()[0])[1] > restarts, within_seconds=60, what="a restart of the container"
        )
        service.await_servers(24, within_seconds=90)
    finally:
        installed.kubectl("scale", *operator, "--replicas=1")
        installed.kubectl("rollout", "status", *operator, "--timeout=90s", timeout_seconds=100)
    service.await_condition("ThresholdSynced", "True", within_seconds=60)


def test_an_idle_service_causes_no_write(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest())
    service.await_ready()
    service.await_condition("MetricsAvailable", "True", within_seconds=60)
    time.sleep(10)  # the deployment controller and the kubelet finish their own writes

    def versions() -> dict[str, str]:
        found = installed.items(f"{RESOURCE},deployments,services,configmaps,events", "-n", namespace)
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in found}

    before = versions()
    time.sleep(70)  # more than two resyncs and a dozen tuning passes
    assert versions() == before


def test_a_service_without_speculation_runs_unpatched(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    made = manifest()
    made["spec"]["speculation"] = {"algorithm": "None"}
    service.apply(made)
    stored = service.await_ready()
    (pod,) = service.pods()
    assert "initContainers" not in pod["spec"]
    assert "threshold" not in stored["status"]

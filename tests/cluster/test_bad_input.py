"""Bad input gives a condition with the cause and the next step, and what runs goes on running."""

from __future__ import annotations

import pytest

import deploy
from localcluster.client import LocalCluster, conditions
from localcluster.eventually import eventually
from services import Service, fixed, identity, manifest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

ENGINE = deploy.engine_image("0.5.23").tag
WITHOUT_SGLANG = "docker.io/sglang-operator/without-sglang:dev"
BROKEN_ANCHOR = deploy.Image(
    "docker.io/sglang-operator/engine-broken:dev",
    deploy.ROOT / "tests/support/images/broken-anchor",
    arguments=(("ENGINE", ENGINE),),
)


def test_an_image_without_sglang_is_refused_and_old_pods_go_on_serving(installed: LocalCluster, namespace: str) -> None:
    image = deploy.Image(WITHOUT_SGLANG, deploy.ROOT / "tests/support/images/without-sglang")
    deploy.provide(installed, image)
    service = Service(installed, namespace)
    service.apply(manifest(replicas=2, rollout={"strategy": "RollingUpdate"}, **fixed(8)))
    service.await_ready()
    before = {pod["metadata"]["name"]: identity(pod) for pod in service.pods()}
    service.patch({"engine": {"image": WITHOUT_SGLANG}})
    refused = service.await_condition("PatchVerified", "False", "SourceNotFound", within_seconds=120)
    assert "sglang" in refused["message"].lower()
    now = conditions(service.get())
    assert now["Serving"]["status"] == "True"
    assert now["UpToDate"]["status"] == "False"
    assert now["Ready"]["status"] == "False"
    kept = {pod["metadata"]["name"]: pod for pod in service.pods() if pod["metadata"]["name"] in before}
    assert kept, "no old pod serves any more"
    assert {name: identity(pod) for name, pod in kept.items()} == {name: before[name] for name in kept}
    service.patch({"engine": {"image": ENGINE}})
    service.await_ready()


def test_a_changed_worker_is_refused_with_its_file(installed: LocalCluster, namespace: str) -> None:
    deploy.provide(installed, BROKEN_ANCHOR)
    service = Service(installed, namespace)
    service.apply(manifest(engine={"image": BROKEN_ANCHOR.tag}, **fixed(8)))
    refused = service.await_condition("PatchVerified", "False", within_seconds=120)
    assert refused["reason"] in {"UnsupportedSource", "UnsupportedWorker"}
    assert "eagle_worker_v2.py" in refused["message"]
    assert conditions(service.get())["Ready"]["status"] == "False"


def test_a_missing_image_says_so(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(engine={"image": "docker.io/sglang-operator/engine-sim:none"}, **fixed(8)))
    failed = eventually(
        lambda: conditions(service.get())["Ready"],
        lambda seen: seen["reason"] == "ImagePullFailed",
        within_seconds=60,
        what="the image named as the cause",
    )
    assert "engine-sim:none" in failed["message"]


def test_contradicting_arguments_are_refused_before_a_gpu_is_taken(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(engine={"args": ["--tp=4"]}, **fixed(8)))
    refused = service.await_condition("SpecValid", "False", "ConflictingArgs", within_seconds=30)
    assert "--tp" in refused["message"]
    assert "gpus.count" in refused["message"]
    assert service.pods() == []


def test_a_missing_draft_model_is_refused_at_apply(installed: LocalCluster, namespace: str) -> None:
    made = manifest(**fixed(8))
    del made["spec"]["speculation"]["draftModel"]
    with pytest.raises(RuntimeError, match="draftModel"):
        Service(installed, namespace).apply(made)


def test_more_gpus_than_there_are_is_told_by_the_scheduler(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(replicas=3, gpus=8, **fixed(8)))
    pending = service.await_condition("Scheduled", "False", "InsufficientGPUs", within_seconds=60)
    assert "nvidia.com/gpu" in pending["message"]


def test_no_node_with_the_product_is_told_with_its_label(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    made = manifest(**fixed(8))
    made["spec"]["gpus"]["product"] = ["NVIDIA-B200"]
    service.apply(made)
    pending = service.await_condition("Scheduled", "False", "NoMatchingNode", within_seconds=60)
    assert "nvidia.com/gpu.product" in pending["message"]


def test_a_server_that_does_not_follow_is_found_out_and_tried_again(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest(**fixed(8)))
    service.await_ready()
    (pod,) = service.pods()
    for fault, batch_size in (("lie_about_updates", 16), ("refuse_updates", 24), ("hang_updates", 32)):
        service.fault(pod["metadata"]["name"], **{fault: True})
        service.patch(fixed(batch_size))
        synced = service.await_condition("ThresholdSynced", "False", within_seconds=30)
        assert pod["metadata"]["name"] in synced["message"], fault
        assert conditions(service.get())["Serving"]["status"] == "True", fault
        service.fault(pod["metadata"]["name"], **{fault: False})
        service.await_condition("ThresholdSynced", "True", within_seconds=60)
        service.await_servers(batch_size, within_seconds=10)
    assert [identity(now) for now in service.pods()] == [identity(pod)]


def test_prometheus_gone_or_misnamed_is_told_and_changes_nothing(installed: LocalCluster, namespace: str) -> None:
    service = Service(installed, namespace)
    service.apply(manifest())
    service.await_ready()
    service.await_condition("MetricsAvailable", "True", within_seconds=60)
    value = service.get()["status"]["threshold"]["batchSize"]

    def check_lost(reasons: set[str], cause: str) -> None:
        lost = service.await_condition("MetricsAvailable", "False", within_seconds=60)
        assert lost["reason"] in reasons
        assert cause in lost["message"].lower()
        now = service.get()
        assert conditions(now)["Serving"]["status"] == "True"
        assert now["status"]["threshold"]["batchSize"] == value

    prometheus = ("deployment/prometheus", "-n", "monitoring")
    installed.kubectl("scale", *prometheus, "--replicas=0")
    try:
        check_lost({"MetricsUnreachable", "NoData", "Stale"}, "prometheus")
        deploy.install_operator(installed, prometheus={"url": "http://no-such-host.monitoring.svc:9090"})
        installed.kubectl("scale", *prometheus, "--replicas=1")
        installed.kubectl("rollout", "status", *prometheus, "--timeout=90s", timeout_seconds=100)
        check_lost({"MetricsUnreachable"}, "no-such-host")
    finally:
        installed.kubectl("scale", *prometheus, "--replicas=1")
        deploy.install_operator(installed)
    service.await_condition("MetricsAvailable", "True", within_seconds=90)


def test_one_refused_service_does_not_stop_another(installed: LocalCluster, namespace: str) -> None:
    bad, good = Service(installed, namespace, "bad"), Service(installed, namespace, "good")
    bad.apply(manifest("bad", engine={"args": ["--port", "1"]}, **fixed(8)))
    good.apply(manifest("good", **fixed(8)))
    bad.await_condition("SpecValid", "False", within_seconds=30)
    good.await_ready()
    good.patch(fixed(5))
    eventually(lambda: good.boot_value() == 5, within_seconds=20, what="the good service's new value")

"""`make demo`: the main job on a local cluster, narrated. Ends with 0 only if the threshold followed the load.

A real cluster starts; the chart installs CRD and operator; an InferenceService becomes a pod on a GPU node whose init
container patches real SGLang sources and proves them; load rises and falls; Prometheus sees it; the operator moves
the threshold of the running server. Only the GPUs and the server's speed are simulated.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
import time

HACK = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HACK), str(HACK / "cluster")]

import deploy  # noqa: E402 - the folders above are no installed packages
from demo.narration import Narrator  # noqa: E402
from demo.watching import Row, Watcher  # noqa: E402
from localcluster.client import RESOURCE, CommandFailed, LocalCluster  # noqa: E402
from localcluster.eventually import eventually  # noqa: E402

SAMPLE = HACK.parent / "manifests/samples/local-demo.yaml"
NAMESPACE = "demo"
NAME = "local-demo"
RELEASE = "0.5.23"
RELEASE_IMAGE = deploy.engine_image(RELEASE).tag
PHASES = "1:20,24:60,64:60,1:20"
LOAD_SECONDS = 160
READY_SECONDS = 240
LOOK_SECONDS = 5


def main() -> int:
    """Run all steps; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the service and its namespace for a look around")
    options = parser.parse_args()
    tell = Narrator()
    cluster = LocalCluster()
    try:
        start_cluster(cluster, tell)
        install(cluster, tell)
        watcher = deploy_service(cluster, tell)
        before, rows = drive(watcher, tell)
        verdict = judge(watcher, before, rows, tell)
    except (AssertionError, CommandFailed) as error:
        tell.step(f"The demo failed: {error}")
        return 1
    if not options.keep:
        tell.step("Clean up; the cluster stays for the next time (make cluster-down ends it)")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=110s", timeout_seconds=120)
    return verdict


def start_cluster(cluster: LocalCluster, tell: Narrator) -> None:
    """Start the local cluster, or use the one that runs."""
    tell.step("A Kubernetes cluster with two 8-GPU nodes")
    tell.command("make cluster-up")
    cluster.manage("up", "--name", cluster.name, timeout_seconds=900)
    tell.command("kubectl get nodes -L nvidia.com/gpu.product,nvidia.com/gpu.count")
    tell.output(cluster.kubectl("get", "nodes", "-L", "nvidia.com/gpu.product,nvidia.com/gpu.count"))


def install(cluster: LocalCluster, tell: Narrator) -> None:
    """Build and load the images, install the chart."""
    tell.step("An image from its Dockerfile: SGLang's real sources, and a simulated server in place of its own")
    image = deploy.engine_image(RELEASE)
    deploy.provide(cluster, image)
    tell.say(image.tag)
    tell.step("The operator: its image, and the chart that brings the CRD and the rest")
    tell.command("helm upgrade --install sglang-operator charts/sglang-operator --wait …")
    tell.output(deploy.install_operator(cluster))


def deploy_service(cluster: LocalCluster, tell: Narrator) -> Watcher:
    """Apply the sample and wait until it is ready."""
    tell.step("One InferenceService")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=110s", timeout_seconds=120)
    cluster.kubectl("create", "namespace", NAMESPACE)
    tell.command(f"kubectl apply -f {SAMPLE.relative_to(HACK.parent)}")
    tell.output(cluster.kubectl("apply", "--namespace", NAMESPACE, "--filename", str(SAMPLE)))
    tell.command(f"kubectl wait --for=condition=Ready {RESOURCE}/{NAME}")
    tell.output(
        cluster.kubectl(
            *("wait", "--for=condition=Ready", f"{RESOURCE}/{NAME}", "--namespace", NAMESPACE),
            f"--timeout={READY_SECONDS}s",
            timeout_seconds=READY_SECONDS + 10,
        )
    )
    watcher = Watcher(cluster, NAMESPACE, NAME)
    pod = watcher.pod()
    tell.say(f"Pod {pod['metadata']['name']} runs on {pod['spec']['nodeName']}. Its init container said:")
    tell.output(cluster.kubectl("logs", "--namespace", NAMESPACE, pod["metadata"]["name"], "--container", "patch"))
    tell.command("kubectl get sgsvc -o wide")
    tell.output(cluster.kubectl("get", "sgsvc", "--namespace", NAMESPACE, "--output", "wide"))
    return watcher


def drive(watcher: Watcher, tell: Narrator) -> tuple[Row, list[Row]]:
    """Start the load and look every few seconds until it ended; returns the first look and all later ones."""
    tell.step(f"Load: requests in parallel and seconds, {PHASES}")
    before = eventually(watcher.look, lambda row: row.agrees, within_seconds=60, what="a first value in force")
    pod = deploy.load_pod(watcher.service(), PHASES)
    tell.command(f"kubectl run load --image {RELEASE_IMAGE} -- {' '.join(pod['spec']['containers'][0]['command'])}")
    watcher.cluster.apply(pod, namespace=watcher.namespace)
    tell.say("running requests by Prometheus; threshold by status, ConfigMap and each rank's own word")
    tell.output("  time  running  status  configmap   server  pod restarts  source")
    rows: list[Row] = []
    started = time.monotonic()
    while time.monotonic() - started < LOAD_SECONDS:
        row = watcher.look()
        tell.output(_line(tell, row))
        rows.append(row)
        time.sleep(LOOK_SECONDS)
    rows.append(eventually(watcher.look, lambda row: row.agrees, within_seconds=60, what="the last value in force"))
    tell.output(_line(tell, rows[-1]))
    return before, rows


def judge(watcher: Watcher, before: Row, rows: list[Row], tell: Narrator) -> int:
    """Say what was shown, and whether it is what was promised; returns the exit code."""
    tell.step("What happened")
    columns = "custom-columns=TIME:.lastTimestamp,REASON:.reason,MESSAGE:.message"
    events = (
        "get",
        "events",
        "--namespace",
        NAMESPACE,
        "--field-selector",
        f"involvedObject.kind=InferenceService,involvedObject.name={NAME}",
    )
    tell.command("kubectl get events --sort-by .lastTimestamp")
    tell.output(watcher.cluster.kubectl(*events, "--sort-by", ".lastTimestamp", "--output", columns))
    last = rows[-1]
    values = [before.status, *(row.status for row in rows if row.agrees)]
    moves = [value for earlier, value in itertools.pairwise(values) if value != earlier]
    stayed = {row.identity for row in rows} == {before.identity}
    tell.say(f"Threshold before the load: {before.status}. Then: {' -> '.join(map(str, moves)) or 'no move'}.")
    tell.say(f"Pod {before.identity.pod}, uid {before.identity.uid}: {'the same throughout' if stayed else 'CHANGED'}.")
    tell.say(f"Restarts before: {before.identity.restarts}, after: {last.identity.restarts}.")
    tell.say(f"In force at the end: status {last.status}, ConfigMap {last.config_map}, server {list(last.server)}.")
    if not moves or not stayed or not last.agrees:
        tell.say("NOT as promised: the threshold must move on a pod that stays, and be the same in all three places.")
        return 1
    tell.say("The threshold followed the load on a running server, and all three places agree.")
    return 0


def _line(tell: Narrator, row: Row) -> str:
    running = "-" if row.running_requests is None else f"{row.running_requests:.0f}"
    server = ",".join(map(str, row.server))
    restarts = row.identity.restarts
    return (
        f"{tell.elapsed_seconds:5.0f}s  {running:>7}  {row.status:>6}  {row.config_map:>9}  {server:>7}  "
        f"{restarts:>12}  {row.source}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""The local cluster itself, on a cluster of its own: what its users rely on, and that nothing of it stays behind."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from localcluster import cgroups, local, rootprocess, settings
from localcluster.client import CommandFailed, LocalCluster, Manifest
from localcluster.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAME = "selftest"
COMMAND = [sys.executable, str(settings.ENTRY)]
PROBE_IMAGE = "docker.io/sglang-operator/cluster-probe:test"
NODES = [node.name for node in settings.NODES]
HOST_SYSCTLS = (
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "net/netfilter/nf_conntrack_max",
)
# The name in two parts, or the program would count itself.
COUNT_PORT_FORWARDS = """
import pathlib
lines = [path.read_bytes() for path in pathlib.Path("/proc").glob("[1-9]*/cmdline")]
print(sum(b"port-" b"forward" in line for line in lines))
"""
PROBE = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"# TYPE sglang:probe_requests_total counter\\nsglang:probe_requests_total 42\\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print("answered", flush=True)

    def log_message(self, *arguments):
        pass

http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


@dataclass(frozen=True)
class HostView:
    """What a cluster could have changed on the host."""

    mounts: tuple[str, ...]
    devices: tuple[str, ...]
    routes: str
    sysctls: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def now(cls) -> HostView:
        """Read it."""
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        # Images may be built beside the test, by hand or by another session.
        mounts = [line for line in lines if "/buildah/" not in line]
        devices = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
        sysctls = [pathlib.Path("/proc/sys") / name for name in HOST_SYSCTLS]
        looked_at = ("/opt", "/etc", "/var/lib", "/var/log", "/run", "/usr/libexec")
        return cls(
            mounts=tuple(sorted(mounts)),
            devices=tuple(sorted(line.partition(":")[0].strip() for line in devices)),
            routes=pathlib.Path("/proc/net/route").read_text(),
            sysctls=tuple(path.read_text() if path.exists() else "" for path in sysctls),
            folders=tuple(sorted(str(entry) for folder in looked_at for entry in pathlib.Path(folder).glob("*"))),
        )


@dataclass(frozen=True)
class Running:
    """The cluster under test, and the host as it was before."""

    cluster: LocalCluster
    paths: settings.Cluster
    host_before: HostView


def command(*arguments: str, timeout_seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """`hack/cluster ARGUMENTS` on the cluster under test."""
    name, *rest = arguments
    return subprocess.run(
        [*COMMAND, name, "--name", NAME, *rest], capture_output=True, text=True, timeout=timeout_seconds
    )


def checked(*arguments: str, timeout_seconds: float = 60) -> str:
    """Like `command`, but a failure fails the test with what was printed."""
    done = command(*arguments, timeout_seconds=timeout_seconds)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def probe_archive(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An image with a small server, built from a Dockerfile as anyone would write it."""
    context = tmp_path_factory.mktemp("probe")
    (context / "probe.py").write_text(PROBE)
    (context / "Dockerfile").write_text(
        'ARG BASE=python:3.11-slim\nFROM ${BASE}\nCOPY probe.py /probe.py\nCMD ["python3", "/probe.py"]\n'
    )
    build = ["build-image", f"--tag={PROBE_IMAGE}", str(context)]
    first = command(*build, timeout_seconds=600)
    assert first.returncode == 0, first.stderr
    again = command(*build)
    assert "unchanged" in again.stderr
    assert again.stdout == first.stdout
    return pathlib.Path(first.stdout.strip())


@pytest.fixture(scope="module")
def running(probe_archive: pathlib.Path) -> Iterator[Running]:
    """A cluster of this module's own; the first one on a machine builds its programs."""
    before = HostView.now()
    paths = settings.Cluster(NAME, settings.cache_dir())
    checked("down")
    checked("up", "--backend=local", timeout_seconds=3600)
    try:
        checked("load", str(probe_archive), timeout_seconds=300)
        yield Running(LocalCluster(NAME), paths, before)
    finally:
        checked("down")


@pytest.fixture(scope="module")
def probes(running: Running) -> str:
    """A namespace with one probe on each node, asking for all of its GPUs, and a Service before the first."""
    # Not deleted: it goes with the cluster, which the last test ends.
    namespace = "probes"
    running.cluster.kubectl("create", "namespace", namespace)
    first, second = (probe_pod(f"probe-{number}", gpus=8) for number in (1, 2))
    first["metadata"]["annotations"] = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"}
    first["metadata"]["labels"]["serving.sglang-operator.io/service"] = "llama"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "probe"},
        "spec": {"selector": {"app": "probe-1"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    running.cluster.apply(first, second, service, namespace=namespace)
    ready = ["--for=condition=Ready", "--timeout=60s", f"--namespace={namespace}"]
    running.cluster.kubectl("wait", *ready, "pod/probe-1", "pod/probe-2", timeout_seconds=70)
    return namespace


def probe_pod(name: str, *, gpus: int) -> Manifest:
    """A pod of the probe image that tolerates the GPU taint."""
    container = {
        "name": "probe",
        "image": PROBE_IMAGE,
        "imagePullPolicy": "Never",
        "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        "volumeMounts": [{"name": "engine-env", "mountPath": "/engine-env", "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [container],
            "volumes": [
                {"name": "engine-env", "hostPath": {"path": str(settings.ENGINE_ENV_ON_NODE), "type": "Directory"}}
            ],
        },
    }


def in_pod(running: Running, namespace: str, pod: str, program: str) -> str:
    """Run a Python program in a pod."""
    return running.cluster.kubectl("exec", "-n", namespace, pod, "--", "python3", "-c", program).strip()


def nodes_by_name(running: Running) -> dict[str, Manifest]:
    """The registered nodes."""
    return {node["metadata"]["name"]: node for node in running.cluster.items("nodes")}


def assert_gpu_nodes(running: Running) -> bool:
    """Both nodes are Ready with all that a GPU node has."""
    nodes = nodes_by_name(running)
    assert sorted(nodes) == NODES
    for node in nodes.values():
        conditions = {entry["type"]: entry["status"] for entry in node["status"]["conditions"]}
        assert conditions["Ready"] == "True"
        assert node["status"]["capacity"]["nvidia.com/gpu"] == "8"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert dict(settings.GPU_LABELS).items() <= node["metadata"]["labels"].items()
        taints = [(taint["key"], taint["value"], taint["effect"]) for taint in node["spec"]["taints"]]
        assert taints == [("nvidia.com/gpu", "present", "NoSchedule")]
    return True


def kubelet_process(running: Running, node: str) -> int:
    """The kubelet's process id, as the cluster's own namespace counts."""
    program = (
        "import pathlib\n"
        "for process in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    words = (process / 'cmdline').read_bytes().split(b'\\0')\n"
        f"    if words[0].endswith(b'/kubelet') and b'--hostname-override={node}' in words:\n"
        "        print(process.name)\n"
    )
    return int(running.cluster.run("python3", "-c", program))


def test_two_gpu_nodes(running: Running) -> None:
    assert_gpu_nodes(running)


def test_an_unbearable_pod_waits(running: Running, probes: str) -> None:
    on = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in running.cluster.items("pods", "-n", probes)}
    assert sorted(on.values()) == NODES
    running.cluster.apply(probe_pod("probe-3", gpus=1), namespace=probes)

    def why_not() -> str:
        pod = running.cluster.get("pod", "probe-3", "-n", probes)
        return str(pod["status"]["conditions"][0]["message"])

    try:
        said = eventually(why_not, within_seconds=20, what="the scheduler's reason")
        assert "Insufficient nvidia.com/gpu" in said
    finally:
        running.cluster.kubectl("delete", "pod", "probe-3", "-n", probes, "--wait=false")


def test_names_and_services_reach_the_other_node(running: Running, probes: str) -> None:
    look_up = "import socket; print(socket.gethostbyname('{}'))"
    address = running.cluster.get("service", "probe", "-n", probes)["spec"]["clusterIP"]
    for name in ("probe", f"probe.{probes}.svc", f"probe.{probes}.svc.cluster.local"):
        assert in_pod(running, probes, "probe-2", look_up.format(name)) == address
    fetch = "import urllib.request; print(urllib.request.urlopen('http://probe/', timeout=5).status)"
    # From the other node, from the node itself, and from the pod behind the Service to itself.
    for pod in ("probe-2", "probe-1"):
        assert in_pod(running, probes, pod, fetch) == "200"
    assert running.cluster.run("curl", "--silent", "--max-time", "5", f"http://probe.{probes}.svc/").count("42") == 1


def test_pods_reach_the_api_server_and_nothing_outside(running: Running, probes: str) -> None:
    ask = (
        "import ssl, urllib.request as r\n"
        "folder = '/var/run/secrets/kubernetes.io/serviceaccount'\n"
        "trust = ssl.create_default_context(cafile=folder + '/ca.crt')\n"
        "headers = {'Authorization': 'Bearer ' + open(folder + '/token').read()}\n"
        "address = 'https://10.96.0.1/apis/authorization.k8s.io'\n"
        "print(r.urlopen(r.Request(address, headers=headers), timeout=5, context=trust).status)"
    )
    assert in_pod(running, probes, "probe-2", ask) == "200"
    leave = (
        "import socket\n"
        "try:\n    socket.create_connection(('192.0.2.1', 443), timeout=10)\n"
        "except OSError as error:\n    print(type(error).__name__, error.errno)"
    )
    started = time.monotonic()
    said = in_pod(running, probes, "probe-2", leave)
    assert said.startswith("OSError"), "refused at once by the network, not timed out"
    assert time.monotonic() - started < 5


def test_logs_exec_and_port_forward(running: Running, probes: str) -> None:
    assert "answered" in running.cluster.kubectl("logs", "-n", probes, "probe-1")
    assert in_pod(running, probes, "probe-1", "print(6 * 7)") == "42"
    argv = [*COMMAND, "exec", "--name", NAME, "--", "kubectl", "port-forward", "-n", probes, "service/probe", ":80"]
    # A shell ignores SIGINT for what it runs in the background, and whatever that starts inherits it.
    forward = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    try:
        assert forward.stdout is not None
        port = forward.stdout.readline().split("127.0.0.1:")[1].split()[0]
        assert "42" in running.cluster.run("curl", "--silent", "--max-time", "5", f"http://127.0.0.1:{port}/")
    finally:
        forward.send_signal(signal.SIGINT)
        forward.communicate(timeout=20)
    eventually(
        lambda: running.cluster.run("python3", "-c", COUNT_PORT_FORWARDS).strip(),
        lambda left: left == "0",
        within_seconds=10,
        what="the interrupted command's end inside the cluster",
    )


def test_pod_security_is_enforced(running: Running) -> None:
    with running.cluster.namespace("strict") as namespace:
        label = "pod-security.kubernetes.io/enforce=restricted"
        running.cluster.kubectl("label", "namespace", namespace, label)
        pod = probe_pod("privileged", gpus=1)
        pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        with pytest.raises(CommandFailed, match='violates PodSecurity "restricted'):
            running.cluster.apply(pod, namespace=namespace)


def test_prometheus_scrapes_annotated_pods(running: Running, probes: str) -> None:
    query = urllib.parse.quote("sglang:probe_requests_total")
    url = f"http://prometheus.monitoring.svc:9090/api/v1/query?query={query}"

    def series() -> list[Manifest]:
        answer = json.loads(running.cluster.run("curl", "--silent", "--max-time", "5", url))
        return list(answer["data"]["result"])

    found = eventually(series, within_seconds=40, what="the probe's metric")
    assert len(found) == 1
    assert found[0]["value"][1] == "42"
    labels = found[0]["metric"]
    assert (labels["namespace"], labels["pod"], labels["inferenceservice"]) == (probes, "probe-1", "llama")
    config = json.loads(
        running.cluster.run("curl", "--silent", "http://prometheus.monitoring.svc:9090/api/v1/status/config")
    )
    assert "scrape_interval: 5s" in config["data"]["yaml"]


def test_the_engine_packages_are_seen_in_every_node(running: Running, probes: str) -> None:
    running.paths.engine_env.mkdir(parents=True, exist_ok=True)
    marker = running.paths.engine_env / ".seen-by-selftest"
    marker.write_text("yes")
    try:
        for pod in ("probe-1", "probe-2"):
            assert in_pod(running, probes, pod, f"print(open('/engine-env/{marker.name}').read())") == "yes"
    finally:
        marker.unlink()


def test_exec_is_like_running_it_here(running: Running, tmp_path: pathlib.Path) -> None:
    argv = [*COMMAND, "exec", "--name", NAME, "--", "sh", "-c", "pwd; echo $KUBECONFIG; exit 7"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode == 7
    assert done.stdout.split() == [str(tmp_path), str(running.paths.kubeconfig)]
    assert checked("exec", "--", "helm", "list", "--all-namespaces").startswith("NAME")
    nested = [*COMMAND, "exec", "--name", NAME, "--", *COMMAND, "status", "--name", NAME]
    assert "Ready, 8 GPUs" in subprocess.run(nested, capture_output=True, text=True, timeout=20).stdout


def test_loading_a_wrong_file_says_so(running: Running, tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_text("nothing")
    said = command("load", str(broken))
    assert said.returncode == 1
    assert str(broken) in said.stderr
    assert "Traceback" not in said.stderr


def test_up_again_says_that_it_runs(running: Running) -> None:
    started = time.monotonic()
    assert "already runs" in checked("up")
    assert time.monotonic() - started < 5


def test_gpus_survive_a_kubelet_that_starts_again(running: Running) -> None:
    node = NODES[1]
    before = kubelet_process(running, node)
    heartbeat = nodes_by_name(running)[node]["status"]["conditions"][0]["lastHeartbeatTime"]
    running.cluster.run("python3", "-c", f"import os; os.kill({before}, 9)")

    def beats_again() -> bool:
        # The new kubelet has written the node's status at least once.
        now = nodes_by_name(running)[node]["status"]["conditions"][0]["lastHeartbeatTime"]
        return bool(now != heartbeat) and kubelet_process(running, node) != before

    eventually(beats_again, within_seconds=60, what="the new kubelet's first status")
    eventually(lambda: assert_gpu_nodes(running), within_seconds=30, what="GPU nodes as before")


def test_a_node_that_crashes_comes_back_with_its_pods(running: Running, probes: str) -> None:
    node = NODES[1]
    (name,) = (
        pod["metadata"]["name"]
        for pod in running.cluster.items("pods", "-n", probes)
        if pod["spec"]["nodeName"] == node
    )

    def status() -> Manifest:
        found: Manifest = running.cluster.get("pod", name, "-n", probes)["status"]["containerStatuses"][0]
        return found

    before = status()
    machine = (running.paths.run / f"{node}.pid").read_text()
    running.cluster.run("kill", "-KILL", machine)
    eventually(
        status,
        lambda now: now["ready"] and now["containerID"] != before["containerID"],
        within_seconds=90,
        what="a new container in the pod of the node",
    )
    eventually(lambda: assert_gpu_nodes(running), within_seconds=30, what="GPU nodes as before")
    assert f"{node} ended 1 times" in checked("status")


def test_the_host_is_as_it_was(running: Running, probes: str) -> None:
    assert HostView.now() == running.host_before


@pytest.mark.timeout(300)
def test_a_crash_is_cleared_and_down_leaves_nothing(running: Running) -> None:
    root = rootprocess.find(running.paths)
    assert root is not None
    members = cgroups.processes(running.paths)
    assert root.pid in members
    subprocess.run(["kill", "-KILL", str(root.pid)], check=True)
    eventually(lambda: not cgroups.processes(running.paths), within_seconds=20, what="end of every process")
    with pytest.raises(CommandFailed, match="isn't running"):
        running.cluster.kubectl("get", "nodes")
    told = checked("up", "--backend=local", timeout_seconds=200)
    assert "clearing what an earlier cluster left" in told
    assert local.healthy(running.paths)
    assert_gpu_nodes(running)
    root = rootprocess.find(running.paths)
    assert root is not None
    checked("down")
    assert not root.alive()
    assert not cgroups.processes(running.paths)
    assert not cgroups.leftovers(running.paths)
    assert not running.paths.state.exists()
    assert not running.paths.lock.exists()
    assert HostView.now() == running.host_before
    assert command("status").returncode == 1

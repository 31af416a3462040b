"""The cluster in namespaces of this machine: up, down, and loading images.

`up` prepares everything on the host's side, starts the one process that starts all others, and then watches the
cluster come up; the cluster runs on without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import (
    addons,
    archives,
    certificates,
    cgroups,
    nodeagents,
    packages,
    programs,
    rootprocess,
    systemimages,
    watching,
)
from localcluster.commands import CommandError, phase, run, say, wait_until
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.settings import NODES, Cluster, Node

_API_SECONDS = 90
_NODES_SECONDS = 90
_IMPORT_SECONDS = 300


def check_machine() -> None:
    """Raises ClusterError naming what this machine lacks and the command that provides it."""
    if os.geteuid() != 0:
        raise ClusterError("without a container engine and kind the cluster needs root: run this command as root")
    if shutil.which("dpkg-query") is None:
        raise ClusterError("needs Debian or Ubuntu; elsewhere install kind and docker or podman")
    if absent := packages.missing():
        raise ClusterError(f"missing packages: {' '.join(absent)}; install them by: python3 hack/cluster install")


def running(cluster: Cluster) -> rootprocess.RootProcess:
    """The cluster's first process. Raises ClusterError when the cluster doesn't run, or isn't the caller's to enter."""
    root = rootprocess.find(cluster)
    if root is None or not (rootprocess.inside(root) or root.alive()):
        raise ClusterError(f"cluster {cluster.name!r} isn't running; start it by: python3 hack/cluster up")
    if os.geteuid() != 0:
        raise ClusterError("the cluster's namespaces belong to root: run this command as root")
    return root


def kubectl(cluster: Cluster) -> Kubectl:
    """Raises ClusterError when the cluster doesn't run."""
    program = (cluster.program("kubectl"), f"--kubeconfig={cluster.kubeconfig}")
    return Kubectl((*rootprocess.enter_argv(running(cluster)), *program))


def healthy(cluster: Cluster) -> bool:
    """Whether an `up` went through to its end, and API server and nodes are (still) well."""
    if not cluster.ready_mark.exists():
        return False
    try:
        states = kubectl(cluster).nodes()
    except ClusterError:
        return False
    return bool(states) and all(state.ready for state in states)


def troubled(cluster: Cluster) -> list[watching.Watched]:
    """The components that have ended, and were started again, since the cluster's start."""
    components = [
        *watching.control_plane(cluster),
        *(part for node in nodes(cluster) for part in watching.node(cluster, node)),
    ]
    return [component for component in components if component.ends()]


def up(cluster: Cluster) -> None:
    """Starts the cluster, clearing first what an earlier one left. Raises ClusterError; nothing runs on then."""
    check_machine()
    if cluster.state.exists() or cgroups.leftovers(cluster):
        with phase("clearing what an earlier cluster left"):
            down(cluster)
    cluster.logs.mkdir(parents=True)
    with phase("programs"):
        programs.link(programs.prepare(cluster.cache), cluster.bin)
    with phase("system images"):
        system_images = systemimages.provide(cluster.cache)
    with phase("certificates"):
        certificates.create(cluster)
    try:
        _start(cluster, system_images.paths)
    except BaseException:
        # The state folder stays, with its logs; the next `up` or `down` clears it.
        rootprocess.end(cluster)
        cgroups.remove(cluster)
        raise
    cluster.ready_mark.touch()


def _start(cluster: Cluster, system_images: Sequence[Path]) -> None:
    pool = ThreadPoolExecutor(len(NODES))
    try:
        with phase("control plane"):
            client = _start_processes(cluster)
            # Beside the rest, which mostly waits.
            imports = {node: pool.submit(_import, cluster, node, system_images) for node in NODES}
            watching.wait_for(cluster, "API server", client.api_ready, watching.control_plane(cluster), _API_SECONDS)
        with phase("nodes"):
            _wait_for_nodes(cluster, client)
        with phase("system images into the nodes"):
            for node in nodes(cluster):
                imports[node].result(timeout=_IMPORT_SECONDS)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    with phase("DNS and Prometheus"):
        addons.apply(client, "coredns.yaml")
        addons.apply(client, "prometheus.yaml")
        addons.wait_for_deployment(client, "kube-system", "coredns")
        addons.wait_for_deployment(client, "monitoring", "prometheus")


def _start_processes(cluster: Cluster) -> Kubectl:
    for node in NODES:
        nodeagents.log_folder(cluster, node).mkdir(parents=True)
        cluster.node_state(node).mkdir(parents=True)
    cgroups.create(cluster)
    rootprocess.start(cluster)
    return kubectl(cluster)


def _wait_for_nodes(cluster: Cluster, client: Kubectl) -> None:
    """Both nodes, or the first alone where a second kubelet doesn't run on this kernel."""
    try:
        _wait_until_ready(cluster, client, NODES)
    except ClusterError as error:
        first, *others = NODES
        say(f"{error}\nThe cluster goes on with {first.name} alone.")
        for node in others:
            cluster.node_given_up(node).touch()
            client.run("delete", "node", node.name, "--ignore-not-found")
        _wait_until_ready(cluster, client, [first])
    for node in nodes(cluster):
        addons.make_gpu_node(client, node.name)


def _wait_until_ready(cluster: Cluster, client: Kubectl, wanted: Sequence[Node]) -> None:
    names = {node.name for node in wanted}
    components = [component for node in wanted for component in watching.node(cluster, node)]

    def ready() -> bool:
        return names <= {state.name for state in client.nodes() if state.ready}

    watching.wait_for(cluster, f"{' and '.join(sorted(names))} Ready", ready, components, _NODES_SECONDS)


def nodes(cluster: Cluster) -> list[Node]:
    """The nodes this cluster has, which is one where two couldn't be run."""
    return [node for node in NODES if not cluster.node_given_up(node).exists()]


def load(cluster: Cluster, paths: Sequence[Path]) -> None:
    """Imports image archives into every node, all nodes at once. Raises ClusterError naming the archive that failed.

    A node that has the very image under that name already is left alone.
    """
    targets = nodes(cluster)
    with ThreadPoolExecutor(len(targets)) as pool:
        list(pool.map(lambda node: _import(cluster, node, paths), targets))


def _import(cluster: Cluster, node: Node, paths: Sequence[Path]) -> None:
    images = [(path.absolute(), archives.describe(path)) for path in paths]
    wait_until(lambda: _containerd_answers(cluster, node), deadline_seconds=60, what=f"containerd of {node.name}")
    present = _images(cluster, node)
    for path, image in images:
        if image.digest and present.get(image.name) == image.digest:
            continue
        try:
            _ctr(cluster, node, "import", str(path))
        except CommandError as error:
            raise ClusterError(f"{path} into {node.name}: {error}") from error
    absent = [image.name for _, image in images if image.name not in _images(cluster, node)]
    if absent:
        raise ClusterError(f"{node.name} doesn't have {', '.join(absent)} after the import")


def _containerd_answers(cluster: Cluster, node: Node) -> bool:
    # Raises, and so ends the waiting, when the cluster has ended meanwhile.
    running(cluster)
    try:
        _images(cluster, node)
    except (CommandError, OSError):
        return False
    return True


def _images(cluster: Cluster, node: Node) -> dict[str, str]:
    lines = _ctr(cluster, node, "list").splitlines()[1:]
    return {fields[0]: fields[2] for fields in (line.split() for line in lines) if len(fields) > 2}


def _ctr(cluster: Cluster, node: Node, *arguments: str) -> str:
    ctr = ["ctr", f"--address={nodeagents.CONTAINERD_SOCKET}", "--namespace=k8s.io", "images"]
    return run([*node_argv(cluster, node), *ctr, *arguments], deadline_seconds=_IMPORT_SECONDS)


def node_argv(cluster: Cluster, node: Node) -> list[str]:
    """The command prefix that runs a program in a node's network and mount namespaces."""
    pid = (cluster.run / f"{node.name}.pid").read_text()
    return [*rootprocess.enter_argv(running(cluster)), "nsenter", f"--target={pid}", "--net", "--mount", "--"]


def down(cluster: Cluster) -> None:
    """Ends the cluster and removes what it left: processes, control groups, mounts, state. Idempotent."""
    rootprocess.end(cluster)
    cgroups.remove(cluster)
    _unmount_below(cluster.state)
    if cluster.state.exists():
        shutil.rmtree(cluster.state)


def _unmount_below(folder: Path) -> None:
    # All of the cluster's mounts are private to its namespaces; this is for a machine where something leaked them.
    mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((point for point in mounted if folder in point.parents), reverse=True):
        run(["umount", "--lazy", str(point)])

"""The commands a person types; each finds out by itself which way the cluster runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from localcluster import images, inside, kind, local, locks, packages, programs, rootprocess, systemimages
from localcluster.commands import say
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.settings import DEFAULT_NAME, Cluster, cache_dir, node_named


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 1 after one sentence (and the logs that belong to it) on standard error."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        return code
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 hack/cluster", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=DEFAULT_NAME, help=f"the cluster (default {DEFAULT_NAME})")

    up = commands.add_parser("up", parents=[named], help="start the cluster, or say that it runs")
    up.add_argument("--backend", choices=("auto", "kind", "local"), default="auto", help="default: kind where it works")
    up.set_defaults(command=_up)
    commands.add_parser("down", parents=[named], help="end it and leave nothing").set_defaults(command=_down)
    commands.add_parser("status", parents=[named], help="what runs").set_defaults(command=_status)
    kubeconfig = commands.add_parser("kubeconfig", parents=[named], help="print the kubeconfig's path")
    kubeconfig.set_defaults(command=_kubeconfig)
    run = commands.add_parser("exec", parents=[named], help="run a command that reaches the cluster")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    run.set_defaults(command=_exec)
    commands.add_parser("shell", parents=[named], help="a shell that reaches the cluster").set_defaults(command=_shell)
    load = commands.add_parser("load", parents=[named], help="import image archives into every node")
    load.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    load.set_defaults(command=_load)
    _add_build_image(commands, named)
    commands.add_parser("install", help="install and build all that `up` needs (once, 25 to 45 minutes)").set_defaults(
        command=_install
    )
    supervise = commands.add_parser("supervise", parents=[named], help=argparse.SUPPRESS)
    supervise.add_argument("--node")
    supervise.set_defaults(command=_supervise)
    return parser


def _add_build_image(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], named: argparse.ArgumentParser
) -> None:
    told = "build a Dockerfile into an archive; prints its path"
    build = commands.add_parser("build-image", parents=[named], help=told)
    build.add_argument("--tag", required=True, help="full name, like docker.io/sglang-operator/operator:dev")
    build.add_argument("-f", "--file", type=Path, help="default: CONTEXT/Dockerfile")
    build.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    build.add_argument("--volume", action="append", default=[], metavar="HOST:CONTAINER[:ro]", help="seen by RUN only")
    build.add_argument("--load", action="store_true", help="load it into the cluster too")
    build.add_argument("context", type=Path, metavar="CONTEXT")
    build.set_defaults(command=_build_image)


def _cluster(options: argparse.Namespace) -> Cluster:
    return Cluster(options.name, cache_dir())


def _by_kind(cluster: Cluster) -> bool:
    return (cluster.state / kind.CONFIG).exists()


def _kubectl(cluster: Cluster) -> Kubectl:
    return kind.kubectl(cluster) if _by_kind(cluster) else local.kubectl(cluster)


def _up(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    engine = _engine_for_kind(options.backend)
    with locks.exclusive(cluster.lock, f"cluster {cluster.name!r}"):
        healthy = kind.healthy(cluster) if _by_kind(cluster) else local.healthy(cluster)
        if healthy:
            say(f"cluster {cluster.name!r} already runs; {_what_next(cluster)}")
            return 0
        if engine is not None:
            kind.up(cluster, engine)
        else:
            local.up(cluster)
    say(f"cluster {cluster.name!r} is up; {_what_next(cluster)}")
    return 0


def _what_next(cluster: Cluster) -> str:
    name = "" if cluster.name == DEFAULT_NAME else f"--name {cluster.name} "
    return f"try: python3 hack/cluster exec {name}-- kubectl get nodes"


def _engine_for_kind(backend: str) -> str | None:
    if backend == "local":
        return None
    engine = images.working_engine() if kind.available() else None
    if backend == "kind" and engine is None:
        raise ClusterError("--backend kind: needs kind, and a docker or podman that answers")
    return engine


def _down(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    with locks.exclusive(cluster.lock, f"cluster {cluster.name!r}", remove=True):
        if _by_kind(cluster):
            kind.down(cluster)
        else:
            local.down(cluster)
    say(f"cluster {cluster.name!r} is gone")
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    if _by_kind(cluster):
        kind.running(cluster)
    else:
        local.running(cluster)
    print(f"cluster {cluster.name}: {'kind' if _by_kind(cluster) else 'local'}, started")
    for node in _kubectl(cluster).nodes():
        print(f"node {node.name}: {'Ready' if node.ready else 'NotReady'}, {node.gpus} GPUs")
    print(f"kubeconfig {cluster.kubeconfig}")
    if not _by_kind(cluster):
        print(f"logs {cluster.logs}")
        for component in local.troubled(cluster):
            print(f"{component.name} ended {component.ends()} times since the start: {component.log}")
    return 0


def _kubeconfig(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    if not cluster.kubeconfig.exists():
        raise ClusterError(f"cluster {cluster.name!r} isn't running; start it by: python3 hack/cluster up")
    print(cluster.kubeconfig)
    return 0


def _exec(options: argparse.Namespace) -> int:
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        raise ClusterError("exec: give a command after --, like: python3 hack/cluster exec -- kubectl get pods")
    return _enter(_cluster(options), argv)


def _shell(options: argparse.Namespace) -> int:
    return _enter(_cluster(options), [os.environ.get("SHELL", "/bin/sh")])


def _enter(cluster: Cluster, argv: Sequence[str]) -> int:
    """Replaces this process; returns only by raising ClusterError."""
    prefix: list[str] = []
    if _by_kind(cluster):
        kind.running(cluster)
    else:
        prefix = rootprocess.enter_argv(local.running(cluster))
    if prefix:
        prefix += ["env", f"--chdir={Path.cwd()}"]
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{cluster.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    command = [*prefix, *argv]
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise ClusterError(f"{command[0]}: {error}") from error


def _load(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    load = kind.load if _by_kind(cluster) else local.load
    load(cluster, options.archives)
    return 0


def _build_image(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    engine = images.working_engine()
    base_key = "" if engine else _base(cluster.cache)
    request = images.Request(
        tag=options.tag,
        dockerfile=(options.file or options.context / "Dockerfile").absolute(),
        context=options.context.absolute(),
        build_args=tuple(options.build_arg),
        volumes=tuple(options.volume),
    )
    built = images.build(request, cluster.cache, engine, extra_key=base_key)
    say(f"{options.tag}: {'built' if built.rebuilt else 'unchanged'}")
    print(built.archive)
    if options.load:
        load = kind.load if _by_kind(cluster) else local.load
        load(cluster, [built.archive])
    return 0


def _base(cache: Path) -> str:
    if os.geteuid() != 0:
        raise ClusterError("without a container engine images are built by buildah as root: run this command as root")
    return systemimages.provide_base(cache)


def _install(options: argparse.Namespace) -> int:
    cache = cache_dir()
    if _engine_for_kind("auto") is not None:
        say("kind and a container engine are here: neither packages nor images of our own are needed")
        programs.prepare_clients(cache)
        return 0
    packages.install()
    programs.prepare(cache)
    systemimages.provide(cache)
    _base(cache)
    return 0


def _supervise(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    if options.node is None:
        inside.run_cluster(cluster)
    else:
        inside.run_node(cluster, node_named(options.node))
    return 1

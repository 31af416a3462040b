"""A running local cluster as programs use it: kubectl and helm inside it, pods' HTTP through the API server."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import urllib.parse
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
COMMAND = pathlib.Path(__file__).parents[1]
RESOURCE = "inferenceservices.serving.sglang-operator.io"


class CommandFailed(RuntimeError):
    """A command inside the cluster ended with an error; the message holds what it printed."""


@dataclass(frozen=True)
class LocalCluster:
    """A running local cluster, by name."""

    name: str = "sglang"

    def manage(self, *arguments: str, timeout_seconds: float = 600) -> str:
        """Run `hack/cluster ARGUMENTS` and return what it printed."""
        return _run([sys.executable, str(COMMAND), *arguments], None, timeout_seconds)

    def run(self, *command: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        """Run a command inside the cluster's network and return its standard output."""
        prefix = [sys.executable, str(COMMAND), "exec", "--name", self.name, "--"]
        return _run([*prefix, *command], stdin, timeout_seconds)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        """Run kubectl inside the cluster."""
        return self.run("kubectl", *arguments, stdin=stdin, timeout_seconds=timeout_seconds)

    def helm(self, *arguments: str, timeout_seconds: float = 120) -> str:
        """Run helm inside the cluster."""
        return self.run("helm", *arguments, timeout_seconds=timeout_seconds)

    def get(self, *arguments: str) -> Manifest:
        """Return one object, or a list object, as kubectl reads it."""
        found: Manifest = json.loads(self.kubectl("get", *arguments, "--output", "json"))
        return found

    def items(self, *arguments: str) -> list[Manifest]:
        """Return the objects of a list."""
        return list(self.get(*arguments)["items"])

    def apply(self, *objects: Manifest, namespace: str) -> None:
        """Apply objects from memory."""
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--namespace", namespace, "--filename", "-", stdin=body)

    def http(self, namespace: str, pod: str, port: int, path: str, body: object | None = None) -> Any:
        """GET (or POST, with a body) a pod's HTTP interface through the API server; returns the decoded JSON."""
        url = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path.lstrip('/')}"
        if body is None:
            return json.loads(self.kubectl("get", "--raw", url))
        return json.loads(self.kubectl("create", "--raw", url, "--filename", "-", stdin=json.dumps(body)))

    def prometheus(self, query: str) -> list[Manifest]:
        """Ask the cluster's Prometheus for an instant vector."""
        encoded = urllib.parse.quote(query, safe="")
        path = f"/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/query?query={encoded}"
        answer = json.loads(self.kubectl("get", "--raw", path))
        return list(answer["data"]["result"])

    @contextlib.contextmanager
    def namespace(self, prefix: str) -> Iterator[str]:
        """A namespace of its own, deleted afterwards; its end is awaited, since a hanging one is a defect."""
        name = f"{prefix}-{uuid.uuid4().hex[:6]}"
        self.kubectl("create", "namespace", name)
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--timeout=110s", timeout_seconds=120)


def conditions(service: Manifest) -> dict[str, Manifest]:
    """Return the conditions of a resource by type."""
    return {condition["type"]: condition for condition in service.get("status", {}).get("conditions", [])}


def _run(command: Sequence[str], stdin: str | None, timeout_seconds: float) -> str:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(command[-6:])}: not within {timeout_seconds} s") from error
    if done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(command[-8:])}: exit {done.returncode}: {done.stderr[-2000:]}{done.stdout[-500:]}"
        )
    return done.stdout

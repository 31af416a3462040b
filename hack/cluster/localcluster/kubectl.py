"""kubectl as the cluster's administrator, from wherever the caller is."""

from __future__ import annotations

import json
from dataclasses import dataclass

from localcluster.commands import CommandError, run
from localcluster.settings import GPU_RESOURCE


@dataclass(frozen=True)
class NodeState:
    """A registered node; `gpus` are the allocatable ones."""

    name: str
    ready: bool
    gpus: int


@dataclass(frozen=True)
class Kubectl:
    """`prefix` is everything before kubectl's own arguments: entering namespaces, program, kubeconfig."""

    prefix: tuple[str, ...]

    def run(self, *arguments: str, stdin: str | None = None, deadline_seconds: float = 60) -> str:
        """Raises CommandError."""
        return run([*self.prefix, *arguments], stdin=stdin, deadline_seconds=deadline_seconds)

    def api_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            self.run("get", "--raw=/readyz", "--request-timeout=5s", deadline_seconds=10)
        except CommandError:
            return False
        return True

    def nodes(self) -> list[NodeState]:
        """The registered nodes. Raises CommandError."""
        listed = json.loads(self.run("get", "nodes", "--output=json", "--request-timeout=10s"))
        return [
            NodeState(
                name=item["metadata"]["name"],
                ready=any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", [])),
                gpus=int(item["status"].get("allocatable", {}).get(GPU_RESOURCE, "0")),
            )
            for item in listed["items"]
        ]

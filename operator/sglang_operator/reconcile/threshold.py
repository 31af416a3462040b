"""Bring the decided threshold to every server and read it back from every rank.

A server is asked when it is new (a restarted container has lost the live value), when its last word differs from
the decision, and once in a while all the same. An answer of success proves nothing; the value read back does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_operator.adapters.ports import Clock, Engine, EngineAddress, EngineState
from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import EngineError, EngineRefused, EngineUnauthorized, EngineUnreachable
from sglang_operator.reconcile.memory import ReadBack, ServiceMemory
from sglang_operator.status.observation import PodThreshold, ThresholdErrorKind


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server process that takes requests: `process` changes with every restart of its container."""

    pod: str
    process: str
    address: EngineAddress


def servers(pods: Sequence[Manifest]) -> tuple[Server, ...]:
    """Return the servers of the pods whose engine container is ready, by pod name."""
    found = (_server(pod) for pod in pods if not pod["metadata"].get("deletionTimestamp"))
    return tuple(sorted((server for server in found if server is not None), key=lambda server: server.pod))


def _server(pod: Manifest) -> Server | None:
    status = pod.get("status", {})
    container = _named(status.get("containerStatuses", []), names.CONTAINER_ENGINE)
    port = _named(_named(pod["spec"]["containers"], names.CONTAINER_ENGINE).get("ports", []), names.PORT_NAME)
    if not container.get("ready") or not status.get("podIP") or not port:
        return None
    return Server(
        pod=pod["metadata"]["name"],
        process=f"{pod['metadata']['uid']}/{container.get('containerID', '')}",
        address=EngineAddress(host=status["podIP"], port=port["containerPort"]),
    )


def _named(items: Sequence[Manifest], name: str) -> Manifest:
    return next((item for item in items if item.get("name") == name), {})


@dataclass(frozen=True, kw_only=True)
class Synchronizer:
    """Pushes and reads back. `read_back_interval_seconds`: how long a server's last word is trusted."""

    engine: Engine
    clock: Clock
    read_back_interval_seconds: float

    async def synchronize(
        self, memory: ServiceMemory, found: Sequence[Server], batch_size: int
    ) -> tuple[PodThreshold, ...]:
        """Make all servers follow `batch_size`; returns each one's last word. Errors are data, never raised."""
        thresholds = await asyncio.gather(*(self._one(memory, server, batch_size) for server in found))
        present = {server.process for server in found}
        for process in [process for process in memory.read_backs if process not in present]:
            del memory.read_backs[process]
        return tuple(thresholds)

    async def _one(self, memory: ServiceMemory, server: Server, batch_size: int) -> PodThreshold:
        known = memory.read_backs.get(server.process)
        if known is not None and self._is_trusted(known, batch_size):
            return known.threshold
        try:
            threshold = _said(server, await self._push(server.address, batch_size))
        except EngineError as error:
            threshold = _failed(server, error)
        memory.read_backs[server.process] = ReadBack(
            threshold=threshold, read_at_seconds=self.clock.monotonic_seconds()
        )
        return threshold

    def _is_trusted(self, known: ReadBack, batch_size: int) -> bool:
        age_seconds = self.clock.monotonic_seconds() - known.read_at_seconds
        return known.threshold.holds(batch_size) and age_seconds < self.read_back_interval_seconds

    async def _push(self, address: EngineAddress, batch_size: int) -> EngineState:
        state = await self.engine.read(address)
        if _follows(state, batch_size):
            return state
        await self.engine.set_threshold(address, batch_size)
        state = await self.engine.read(address)
        if not _follows(state, batch_size):
            held = ", ".join(str(value) for value in state.thresholds) or "none"
            raise EngineRefused(f"Asked for {batch_size}, the server's ranks hold {held} after the update.")
        return state


def _follows(state: EngineState, batch_size: int) -> bool:
    return bool(state.thresholds) and all(value == batch_size for value in state.thresholds)


def _said(server: Server, state: EngineState) -> PodThreshold:
    return PodThreshold(
        pod=server.pod,
        values=state.thresholds,
        active=state.active,
        inactive_reason=state.inactive_reason,
        release=state.release,
    )


def _failed(server: Server, error: EngineError) -> PodThreshold:
    kinds: dict[type[EngineError], ThresholdErrorKind] = {
        EngineUnauthorized: ThresholdErrorKind.UNAUTHORIZED,
        EngineUnreachable: ThresholdErrorKind.UNREACHABLE,
    }
    return PodThreshold(
        pod=server.pod,
        active=False,
        error_kind=kinds.get(type(error), ThresholdErrorKind.REFUSED),
        error_message=str(error),
    )

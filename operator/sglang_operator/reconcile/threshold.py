"""Bring what was decided to every server and read it back from every rank.

A server is asked when it is new (a restarted container has lost the live values), when its last word differs from
the decision, and once in a while all the same. An answer of success proves nothing; the values read back do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_operator.adapters.ports import Clock, Engine, EngineAddress, EngineKeys, EngineState, LiveSettings
from sglang_operator.api import names
from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import (
    APIKeyUnavailable,
    ClusterError,
    EngineError,
    EngineRefused,
    EngineUnauthorized,
    EngineUnreachable,
)
from sglang_operator.reconcile.apikeys import KeyPlaces, KeyRing, key_places
from sglang_operator.reconcile.memory import ReadBack, ServiceMemory
from sglang_operator.status.observation import PodThreshold, ThresholdErrorKind


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server process that takes requests: `process` changes with every restart of its container."""

    pod: str
    process: str
    address: EngineAddress
    keys: KeyPlaces


def servers(pods: Sequence[Manifest]) -> tuple[Server, ...]:
    """Return the servers of the pods whose engine container is ready, by pod name."""
    found = (_server(pod) for pod in pods if not pod["metadata"].get("deletionTimestamp"))
    return tuple(sorted((server for server in found if server is not None), key=lambda server: server.pod))


def _server(pod: Manifest) -> Server | None:
    status = pod.get("status", {})
    container = _named(status.get("containerStatuses", []), names.CONTAINER_ENGINE)
    engine = _named(pod["spec"]["containers"], names.CONTAINER_ENGINE)
    port = _named(engine.get("ports", []), names.PORT_NAME)
    if not container.get("ready") or not status.get("podIP") or not port:
        return None
    return Server(
        pod=pod["metadata"]["name"],
        process=f"{pod['metadata']['uid']}/{container.get('containerID', '')}",
        address=EngineAddress(host=status["podIP"], port=port["containerPort"]),
        keys=key_places(pod["metadata"]["namespace"], engine),
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
        self, memory: ServiceMemory, found: Sequence[Server], decision: Decision, keys: KeyRing
    ) -> tuple[PodThreshold, ...]:
        """Make all servers follow `decision`; returns each one's last word. Errors are data, never raised."""
        thresholds = await asyncio.gather(*(self._one(memory, server, decision, keys) for server in found))
        present = {server.process for server in found}
        for process in [process for process in memory.read_backs if process not in present]:
            del memory.read_backs[process]
        return tuple(thresholds)

    async def _one(self, memory: ServiceMemory, server: Server, decision: Decision, keys: KeyRing) -> PodThreshold:
        known = memory.read_backs.get(server.process)
        if known is not None and self._is_trusted(known, decision):
            return known.threshold
        try:
            threshold = _said(server, await self._push(server.address, await keys.keys(server.keys), decision))
        except (EngineError, ClusterError) as error:
            threshold = _failed(server, error)
        memory.read_backs[server.process] = ReadBack(
            threshold=threshold, read_at_seconds=self.clock.monotonic_seconds()
        )
        return threshold

    def _is_trusted(self, known: ReadBack, decision: Decision) -> bool:
        age_seconds = self.clock.monotonic_seconds() - known.read_at_seconds
        return known.threshold.follows(decision) and age_seconds < self.read_back_interval_seconds

    async def _push(self, address: EngineAddress, keys: EngineKeys, decision: Decision) -> EngineState:
        state = await self.engine.read(address, keys)
        if _follows(state, decision):
            return state
        probes = None if state.probe_permilles is None else decision.probe_permille
        await self.engine.update(address, keys, LiveSettings(batch_size=decision.batch_size, probe_permille=probes))
        state = await self.engine.read(address, keys)
        if not _follows(state, decision):
            raise EngineRefused(_kept(state, decision))
        return state


def _follows(state: EngineState, decision: Decision) -> bool:
    thresholds, probes = set(state.thresholds), set(state.probe_permilles or ())
    return thresholds == {decision.batch_size} and probes <= {decision.probe_permille}


def _kept(state: EngineState, decision: Decision) -> str:
    """Say what the ranks hold instead of what they were asked for."""
    held = ", ".join(str(value) for value in state.thresholds) or "none"
    text = f"Asked for {decision.batch_size}, the server's ranks hold {held} after the update"
    if state.probe_permilles is not None:
        probes = ", ".join(str(value) for value in state.probe_permilles)
        text += f"; asked for {decision.probe_permille} probes in 1000 steps, they hold {probes}"
    return f"{text}."


def _said(server: Server, state: EngineState) -> PodThreshold:
    return PodThreshold(
        pod=server.pod,
        values=state.thresholds,
        probe_permilles=state.probe_permilles,
        active=state.active,
        inactive_reason=state.inactive_reason,
        release=state.release,
        off_path=state.off_path,
        off_path_reason=state.off_path_reason,
    )


def _failed(server: Server, error: EngineError | ClusterError) -> PodThreshold:
    kinds: dict[type[EngineError], ThresholdErrorKind] = {
        EngineUnauthorized: ThresholdErrorKind.UNAUTHORIZED,
        EngineUnreachable: ThresholdErrorKind.UNREACHABLE,
        APIKeyUnavailable: ThresholdErrorKind.NO_KEY,
    }
    refused = ThresholdErrorKind.REFUSED
    kind = kinds.get(type(error), refused) if isinstance(error, EngineError) else ThresholdErrorKind.KEY_NOT_READ
    return PodThreshold(pod=server.pod, active=False, error_kind=kind, error_message=_explained(server, error))


def _explained(server: Server, error: EngineError | ClusterError) -> str:
    if not isinstance(error, EngineUnauthorized):
        return str(error)
    sources = str(server.keys)
    where = f"it was started with {sources}" if sources else "its pod names no Secret with one"
    return f"{str(error).rstrip('.')}; {where}"

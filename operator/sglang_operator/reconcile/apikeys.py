"""The API keys of servers, read from the Secrets that their own pods name.

A pod's environment says which Secret its server took the key from, whatever the resource says meanwhile: during a
rollout old and new pods may differ. A key lives for one pass, is sent to the server it belongs to, and is shown
nowhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sglang_operator.adapters.ports import Cluster, EngineKeys, Secret
from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import APIKeyUnavailable, ClusterForbidden

_PRINTABLE: Final = range(0x20, 0x7F)


@dataclass(frozen=True, kw_only=True)
class SecretPlace:
    """One key of one Secret."""

    namespace: str
    secret: str
    key: str

    def __str__(self) -> str:
        """Name it in a sentence."""
        return f"key {self.key} of Secret {self.namespace}/{self.secret}"


@dataclass(frozen=True, kw_only=True)
class KeyPlaces:
    """Where a server's keys are; None: it was started without."""

    api: SecretPlace | None = None
    admin: SecretPlace | None = None

    def __str__(self) -> str:
        """Name them in a sentence; empty when there is none."""
        return " and ".join(str(place) for place in (self.api, self.admin) if place is not None)


def key_places(namespace: str, engine: Manifest) -> KeyPlaces:
    """Return where the keys of the server in this container come from."""
    return KeyPlaces(
        api=_place(namespace, engine, names.API_KEY_VARIABLE),
        admin=_place(namespace, engine, names.ADMIN_API_KEY_VARIABLE),
    )


def _place(namespace: str, engine: Manifest, variable: str) -> SecretPlace | None:
    for item in engine.get("env", []):
        reference = item.get("valueFrom", {}).get("secretKeyRef")
        if item["name"] == variable and reference:
            return SecretPlace(namespace=namespace, secret=reference["name"], key=reference["key"])
    return None


class KeyRing:
    """The Secrets as one pass sees them: each is read once, when a server is first to be asked."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._secrets: dict[tuple[str, str], asyncio.Future[Secret | None]] = {}

    async def keys(self, places: KeyPlaces) -> EngineKeys:
        """Return a server's keys.

        Raises:
            APIKeyUnavailable: a Secret or its key is missing, closed to the operator, or unusable.
            ClusterError: the API server failed otherwise.
        """
        return EngineKeys(api=await self._key(places.api), admin=await self._key(places.admin))

    async def _key(self, place: SecretPlace | None) -> str | None:
        if place is None:
            return None
        try:
            secret = await self._secret(place)
        except ClusterForbidden as error:
            raise APIKeyUnavailable(
                f"the operator may not read Secret {place.namespace}/{place.secret}: install the chart with "
                f"rbac.readSecrets=true, or grant its account `get` on that Secret ({error})"
            ) from error
        if secret is None:
            raise APIKeyUnavailable(
                f"Secret {place.namespace}/{place.secret} does not exist: create it anew, the pod can't restart without"
            )
        if place.key not in secret.values:
            raise APIKeyUnavailable(f"there is no {place}: add it, the pod can't restart without")
        return _usable(secret.values[place.key], place)

    async def _secret(self, place: SecretPlace) -> Secret | None:
        name = (place.namespace, place.secret)
        if name not in self._secrets:
            self._secrets[name] = asyncio.ensure_future(self._cluster.get_secret(*name))
        return await self._secrets[name]


def _usable(value: bytes, place: SecretPlace) -> str:
    """Return the key as a header can carry it: what no client can send would lock the server for everyone."""
    if not value:
        raise APIKeyUnavailable(f"{place} is empty, which leaves the server open to everyone: put a key there")
    if value != value.strip():
        raise APIKeyUnavailable(
            f"{place} begins or ends with white space or a line break, which no client can send: store it without "
            "(`kubectl create secret --from-literal`, or `echo -n`), and replace the pods"
        )
    if any(letter not in _PRINTABLE for letter in value):
        raise APIKeyUnavailable(f"{place} holds other letters than printable ASCII, which no client can send")
    return value.decode("ascii")

"""The Kubernetes API, through the official asyncio client's plain request path.

Objects stay manifests: the client's models would refuse fields that are newer than the client. Everything the
operator asks of the API server is listed in `CALLS`, which the chart's roles are tested against.
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration

from sglang_operator.adapters.ports import ChildKind, Clock, Secret
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.errors import ClusterConflict, ClusterError, ClusterForbidden
from sglang_operator.status.summary import EventLine

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS: Final = 15
_LIST_PAGE_SIZE: Final = 200
_MESSAGE_LIMIT: Final = 1000


@dataclass(frozen=True)
class ApiCall:
    """One kind of object and what the operator does with it."""

    group: str
    resource: str
    verbs: frozenset[str]


SECRETS: Final = ApiCall("", "secrets", frozenset({"get"}))
"""The one right that may be withheld: servers with an API key then keep the threshold that they have."""

_OWNED = frozenset({"get", "list", "create", "patch", "delete"})
CALLS: Final[tuple[ApiCall, ...]] = (
    ApiCall(names.GROUP, names.PLURAL, frozenset({"get", "list", "watch"})),
    ApiCall(names.GROUP, f"{names.PLURAL}/status", frozenset({"patch"})),
    # Needed where the admission plugin OwnerReferencesPermissionEnforcement is on: owner references block deletion.
    ApiCall(names.GROUP, f"{names.PLURAL}/finalizers", frozenset({"update"})),
    ApiCall("apps", "deployments", _OWNED | {"watch"}),
    ApiCall("", "services", _OWNED),
    ApiCall("", "configmaps", _OWNED),
    ApiCall("", "pods", frozenset({"list", "watch"})),
    ApiCall("", "events", frozenset({"create"})),
    SECRETS,
)

_CHILD_PATHS: Final = {
    ChildKind.DEPLOYMENT: ("apis/apps/v1", "deployments"),
    ChildKind.SERVICE: ("api/v1", "services"),
    ChildKind.CONFIG_MAP: ("api/v1", "configmaps"),
}


async def load_configuration() -> Configuration:
    """Read the connection: the pod's service account if there is one, else the person's kubeconfig.

    Raises:
        ClusterError: neither is there.
    """
    configuration = Configuration()
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    except kubernetes_config.ConfigException:
        try:
            await kubernetes_config.load_kube_config(client_configuration=configuration)
        except kubernetes_config.ConfigException as error:
            raise ClusterError(
                f"No way to reach a cluster: no service account in this pod, and no usable kubeconfig ({error}). "
                "Run the operator in a pod, or set KUBECONFIG."
            ) from error
    return configuration


class KubernetesCluster:
    """`ports.Cluster` over HTTP. One instance for the whole process; safe for concurrent passes."""

    def __init__(self, client: ApiClient, clock: Clock, *, watch_namespaces: tuple[str, ...], identity: str) -> None:
        self._client = client
        self._clock = clock
        self._watch_namespaces = watch_namespaces
        self._identity = identity

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get_service(self, key: ServiceKey) -> Manifest | None:
        """Read one InferenceService; None when it is gone."""
        return await self._get(_service_path(key))

    async def list_services(self) -> list[Manifest]:
        """Read all InferenceServices in the operator's scope."""
        prefix = f"apis/{names.API_VERSION}"
        paths = [f"{prefix}/namespaces/{namespace}/{names.PLURAL}" for namespace in self._watch_namespaces]
        services: list[Manifest] = []
        for path in paths or [f"{prefix}/{names.PLURAL}"]:
            services.extend(await self._list(path))
        return services

    async def get_child(self, kind: ChildKind, key: ServiceKey) -> Manifest | None:
        """Read one child by namespace and name; None when there is none."""
        return await self._get(_child_path(kind, key))

    async def list_children(self, kind: ChildKind, key: ServiceKey) -> list[Manifest]:
        """Read the children of one kind that carry the service's label."""
        root, plural = _CHILD_PATHS[kind]
        found = await self._list(f"{root}/namespaces/{key.namespace}/{plural}", selector=_selector(key))
        # Items of a list carry no kind of their own.
        return [{**item, "kind": kind.value, "apiVersion": root.split("/", 1)[1]} for item in found]

    async def list_pods(self, key: ServiceKey) -> list[Manifest]:
        """Read the pods that carry the service's label."""
        return await self._list(f"api/v1/namespaces/{key.namespace}/pods", selector=_selector(key))

    async def get_secret(self, namespace: str, name: str) -> Secret | None:
        """Read one Secret; None when there is none."""
        path = f"api/v1/namespaces/{quote(namespace)}/secrets/{quote(name)}"
        stored = await self._get(path)
        if stored is None:
            return None
        return Secret(values={key: base64.b64decode(value) for key, value in (stored.get("data") or {}).items()})

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply one child as the children's field manager, conflicts forced; returns it as stored."""
        kind = ChildKind(manifest["kind"])
        metadata = manifest["metadata"]
        path = _child_path(kind, ServiceKey(metadata["namespace"], metadata["name"]))
        return await self._apply(path, manifest, names.FIELD_MANAGER_CHILDREN)

    async def delete_child(self, kind: ChildKind, key: ServiceKey) -> None:
        """Delete one child; no error when it is gone already."""
        await self._request("DELETE", _child_path(kind, key), missing_is_fine=True)

    async def apply_status(self, key: ServiceKey, status: Manifest) -> None:
        """Server-side apply the status of an InferenceService as the status field manager."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "status": status,
        }
        await self._apply(f"{_service_path(key)}/status", body, names.FIELD_MANAGER_STATUS)

    async def record_event(self, service: Manifest, note: EventLine) -> None:
        """Record an event about an InferenceService; failures are logged, never raised."""
        metadata = service["metadata"]
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "reason": note.reason,
            "message": note.message[:_MESSAGE_LIMIT],
            "type": "Warning" if note.warning else "Normal",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": names.MANAGED_BY},
            "reportingComponent": names.MANAGED_BY,
            "reportingInstance": self._identity,
        }
        try:
            await self._request("POST", f"api/v1/namespaces/{metadata['namespace']}/events", body=event)
        except ClusterError as error:
            logger.warning("event not recorded for %s/%s: %s", metadata["namespace"], metadata["name"], error)

    async def _get(self, path: str) -> Manifest | None:
        return await self._request("GET", path, missing_is_fine=True)

    async def _list(self, path: str, *, selector: str | None = None) -> list[Manifest]:
        items: list[Manifest] = []
        position: str | None = None
        while True:
            query = [("limit", str(_LIST_PAGE_SIZE))]
            query += [("labelSelector", selector)] if selector else []
            query += [("continue", position)] if position else []
            page = await self._request("GET", path, query=query)
            items.extend(page["items"] if page else [])
            position = page["metadata"].get("continue") if page else None
            if not position:
                return items

    async def _apply(self, path: str, body: Manifest, manager: str) -> Manifest:
        stored = await self._request(
            "PATCH",
            path,
            body=body,
            query=[("fieldManager", manager), ("force", "true")],
            content_type="application/apply-patch+yaml",
        )
        if stored is None:
            raise ClusterError(f"PATCH {path}: the API server answered without an object.")
        return stored

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
        missing_is_fine: bool = False,
    ) -> Manifest | None:
        """Make one request; None only for a 404 that `missing_is_fine` allows."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            serialized = await self._client.param_serialize(
                method, f"/{path}", query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await self._client.call_api(*serialized, _request_timeout=REQUEST_TIMEOUT_SECONDS)
            content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"{method} {path}: the API server can't be reached ({error!r}).") from error
        if response.status == 404 and missing_is_fine:
            return None
        if not 200 <= response.status < 300:
            raise _error(method, path, response.status, content)
        return _decoded(method, path, content)


def _decoded(method: str, path: str, content: bytes) -> Manifest:
    try:
        decoded: Any = json.loads(content)
    except ValueError as error:
        raise ClusterError(f"{method} {path}: the API server's answer is no JSON.") from error
    if not isinstance(decoded, dict):
        raise ClusterError(f"{method} {path}: the API server's answer is no object.")
    return decoded


def _error(method: str, path: str, status: int, content: bytes) -> ClusterError:
    try:
        said = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        said = content[:300].decode(errors="replace")
    message = f"{method} {path}: {said} (HTTP {status})."
    kinds = {403: ClusterForbidden, 409: ClusterConflict}
    return kinds.get(status, ClusterError)(message, status=status)


def _service_path(key: ServiceKey) -> str:
    return f"apis/{names.API_VERSION}/namespaces/{quote(key.namespace)}/{names.PLURAL}/{quote(key.name)}"


def _child_path(kind: ChildKind, key: ServiceKey) -> str:
    root, plural = _CHILD_PATHS[kind]
    return f"{root}/namespaces/{quote(key.namespace)}/{plural}/{quote(key.name)}"


def _selector(key: ServiceKey) -> str:
    return f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_SERVICE}={key.name}"

"""The kopf handlers: events come in and say which service needs a pass; nothing is decided here.

Only `on.event` handlers: they store nothing in the objects and add no finalizer, so that a service can be deleted
whether or not the operator lives. Retries and delays are the work queue's business.
"""

from __future__ import annotations

import inspect
from datetime import UTC, timedelta

import kopf

from sglang_operator.adapters.kube import load_configuration
from sglang_operator.adapters.ports import Clock
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.handlers.heartbeat import Heartbeat
from sglang_operator.reconcile.queue import WorkQueue

CREDENTIALS_LIFETIME = timedelta(minutes=5)
_OURS = {names.LABEL_MANAGED_BY: names.MANAGED_BY}


def build_registry(queue: WorkQueue, heartbeat: Heartbeat, clock: Clock) -> kopf.OperatorRegistry:
    """Return a registry of its own, so that two operators in one process (tests) share nothing."""
    registry = kopf.OperatorRegistry()

    async def login(**_: object) -> kopf.ConnectionInfo:
        return await _connection(clock)

    async def configure(settings: kopf.OperatorSettings, **_: object) -> None:
        configure_settings(settings)

    async def alive(**_: object) -> str:
        silent = heartbeat.silent()
        if silent:
            raise kopf.PermanentError(f"silent for too long: {', '.join(silent)}")
        return "ok"

    async def service_event(namespace: str | None, name: str | None, **_: object) -> None:
        queue.add(ServiceKey(namespace or "", name or ""))

    async def child_event(namespace: str | None, labels: kopf.Labels, **_: object) -> None:
        service = labels.get(names.LABEL_SERVICE)
        if service:
            queue.add(ServiceKey(namespace or "", service))

    kopf.on.login(registry=registry, id="login")(login)
    kopf.on.startup(registry=registry, id="configure")(configure)
    kopf.on.probe(registry=registry, id="alive")(alive)
    kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry, id="service")(service_event)
    kopf.on.event("apps", "v1", "deployments", labels=_OURS, registry=registry, id="deployment")(child_event)
    kopf.on.event("", "v1", "pods", labels=_OURS, registry=registry, id="pod")(child_event)
    return registry


def configure_settings(settings: kopf.OperatorSettings) -> None:
    """Set what differs from kopf's defaults."""
    # One operator acts, by its Deployment (one replica, Recreate); peering would need its own CRD.
    settings.peering.standalone = True
    # Scanning needs rights on namespaces and CRDs; the chart installs the CRD before the operator.
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = 500
    ours = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    settings.watching.label_selectors["apps", "v1", "deployments"] = ours
    settings.watching.label_selectors["", "v1", "pods"] = ours


async def _connection(clock: Clock) -> kopf.ConnectionInfo:
    configuration = await load_configuration()
    key = configuration.get_api_key_with_prefix("BearerToken")
    header = (await key if inspect.isawaitable(key) else key) or ""
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme.capitalize() if token else None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        # A service account token is replaced long before it ends; read it again in good time.
        expiration=clock.now().astimezone(UTC) + CREDENTIALS_LIFETIME,
    )

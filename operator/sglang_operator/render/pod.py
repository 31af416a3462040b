"""The pod template: a server on all its GPUs, with the engine patch before it where drafting can be switched off.

Without speculation there is no threshold and nothing to patch, so the server runs the image's own sources.

The restricted profile of the pod security standards is kept by default. SGLang's images run as root unless told
otherwise, so a user id is set; clusters that assign ids themselves want it replaced by `podTemplate.securityContext`.
"""

from __future__ import annotations

from typing import Any, Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import EngineSpec, GPUSpec, InferenceService, Manifest, PodTemplate
from sglang_operator.render import args, enginepatch, environment, identity, placement, probes, volumes

METRICS_PATH: Final = "/metrics"
USER_ID: Final = 1000
DRAIN_DELAY_SECONDS_MAX: Final = 10


def template(service: InferenceService, *, patch_digest: str | None) -> Manifest:
    """The pod template, without its revision. `patch_digest` None: the image's own sources are served.

    Raises:
        SpecError: the spec contradicts itself in a way that the resource's schema can't tell.
    """
    return {
        "metadata": {
            "labels": {**service.spec.pod_template.labels, **identity.labels(service)},
            "annotations": _annotations(service, patch_digest),
        },
        "spec": {
            **_pod_settings(service.spec.pod_template),
            "affinity": placement.affinity(service),
            "tolerations": placement.tolerations(service),
            **_containers(service, patch_digest),
            "volumes": volumes.volumes(service, patch_digest),
        },
    }


def _annotations(service: InferenceService, patch_digest: str | None) -> dict[str, str]:
    """Scraping can be redirected or switched off by the user; the operator's own annotations can't be taken."""
    scraping = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(service.spec.engine.port),
        "prometheus.io/path": METRICS_PATH,
    }
    own = {names.ANNOTATION_PATCH: patch_digest} if patch_digest is not None else {}
    return {**scraping, **service.spec.pod_template.annotations, **own}


def _pod_settings(template: PodTemplate) -> Manifest:
    given: Manifest = {
        "nodeSelector": dict(template.node_selector),
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
        "serviceAccountName": template.service_account_name,
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
    }
    context = template.security_context
    return {
        # Every Service of the namespace would become variables, whose names can change what the server does.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": _pod_security() if context is None else context.manifest(),
        **{field: value for field, value in given.items() if value},
    }


def _pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        # A claim full of weights isn't walked through at each start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def _containers(service: InferenceService, patch_digest: str | None) -> Manifest:
    patched = patch_digest is not None
    engine = _engine(service, patched=patched)
    if not patched:
        return {"containers": [engine]}
    patch = {
        "name": names.CONTAINER_PATCH,
        **_common(service, patched=True),
        "command": enginepatch.apply_command(),
        **_resources(service.spec.engine, gpus=None),
    }
    return {"initContainers": [patch], "containers": [engine]}


def _common(service: InferenceService, *, patched: bool) -> Manifest:
    """What the patch container must share with the server to import the same files in the same way."""
    context = service.spec.pod_template.container_security_context
    return {
        "image": service.spec.engine.image,
        "imagePullPolicy": service.spec.engine.image_pull_policy,
        "env": environment.shared(service, speculates=patched),
        "volumeMounts": volumes.mounts(service, patched=patched),
        "securityContext": _container_security() if context is None else context.manifest(),
        "terminationMessagePath": enginepatch.TERMINATION_LOG,
        # The end of the log, when a container died before it could say why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _engine(service: InferenceService, *, patched: bool) -> Manifest:
    spec = service.spec
    common = _common(service, patched=patched)
    command = list(args.SERVER_COMMAND)
    return {
        "name": names.CONTAINER_ENGINE,
        **common,
        "command": enginepatch.run_command(command) if patched else command,
        "args": args.engine_args(service),
        "env": [*environment.secrets(service), *common["env"]],
        "ports": [{"name": names.PORT_NAME, "containerPort": spec.engine.port, "protocol": "TCP"}],
        **_resources(spec.engine, gpus=spec.gpus),
        "startupProbe": probes.startup(spec.engine.startup_timeout_seconds),
        "readinessProbe": probes.readiness(),
        "livenessProbe": probes.liveness(),
        **_draining(spec.pod_template.termination_grace_period_seconds),
    }


def _resources(engine: EngineSpec, *, gpus: GPUSpec | None) -> dict[str, Any]:
    """Requests and limits of a container; without `gpus`, of the patch container.

    It runs before the server and so costs nothing beside it. It gets the server's memory, since an import of torch
    needs gigabytes and a namespace's default limit may be far below.
    """
    devices = {gpus.resource_name: str(gpus.count)} if gpus is not None else {}
    asked = engine.resources
    requests = {"cpu": asked.cpu, "memory": asked.memory, **devices}
    limits = {"memory": asked.memory_limit, **devices}
    bounds = {
        "requests": {name: value for name, value in requests.items() if value is not None},
        "limits": {name: value for name, value in limits.items() if value is not None},
    }
    rendered = {kind: values for kind, values in bounds.items() if values}
    return {"resources": rendered} if rendered else {}


def _draining(grace_period_seconds: int) -> Manifest:
    """Go on serving for some seconds before the signal to drain: until then clients still send to this pod.

    The delay counts against the grace period, so it takes a quarter of it at most.
    """
    delay_seconds = min(DRAIN_DELAY_SECONDS_MAX, grace_period_seconds // 4)
    if delay_seconds == 0:
        return {}
    return {"lifecycle": {"preStop": {"exec": {"command": ["sleep", str(delay_seconds)]}}}}

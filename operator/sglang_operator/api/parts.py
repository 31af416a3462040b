"""Parts of the resource that Kubernetes itself defines: the operator passes them on as they are.

For Python they are opaque. For the API server each says what is cheap to say and won't change: closed where the
members have been the same for years (a misspelt `efect` is refused), open where Kubernetes adds members with its
releases, but with the known ones typed. Whatever slips through is refused when the Deployment is applied, and the
condition `Degraded` then carries the API server's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from sglang_operator.api import forms

Schema = Mapping[str, Any]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def _text(description: str, *, max_length: int = 253, **more: object) -> Schema:
    return {"type": "string", "maxLength": max_length, "description": description, **more}


def _form(description: str, form: forms.Form) -> Schema:
    return {"type": "string", "description": description, forms.JSON_SCHEMA_KEY: form}


def _integer(description: str, *, minimum: int = 0) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": minimum, "description": description}


def _switch(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _open(description: str, properties: Mapping[str, Schema] = MappingProxyType({})) -> Schema:
    members = {"properties": dict(properties)} if properties else {}
    return {"type": "object", _PRESERVE: True, "description": description, **members}


class Opaque(BaseModel):
    """Base of the parts that Kubernetes itself defines and checks: kept as they are, not interpreted here."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kubernetes_schema: ClassVar[Schema] = {"type": "object", _PRESERVE: True}
    """What the CRD says about the part, as a structural schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Put the CRD's schema in place of pydantic's, which knows no members."""
        return {"description": cls.__doc__ or "", **cls.kubernetes_schema}

    def manifest(self) -> dict[str, Any]:
        """Return the part as the API server takes it."""
        return self.model_dump(mode="json")


class Toleration(Opaque):
    """One toleration, as in a pod."""

    kubernetes_schema: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "key": _form("Key of the taint. Unset with `Exists`: every taint.", forms.LABEL_KEY_FORM),
            "operator": _text(
                "`Exists` tolerates any value, `Equal` (the default) only `value`.",
                max_length=16,
                enum=["Exists", "Equal", "Lt", "Gt"],
            ),
            "value": _form("Value of the taint, with `Equal`.", forms.OPTIONAL_LABEL_VALUE_FORM),
            "effect": _text(
                "Effect of the taint. Unset: every effect.",
                max_length=32,
                enum=["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ),
            "tolerationSeconds": {
                "type": "integer",
                "format": "int64",
                "description": "How long a taint with the effect NoExecute is tolerated. Unset: for ever.",
            },
        },
    }


class VolumeMount(Opaque):
    """One mount, as in a container."""

    kubernetes_schema: ClassVar[Schema] = {
        "type": "object",
        "required": ["name", "mountPath"],
        "properties": {
            "name": _text("Name of a volume of `podTemplate.volumes`.", max_length=63, minLength=1),
            "mountPath": _text("Where the volume appears in the container.", max_length=1024, minLength=1),
            "subPath": _text("Path inside the volume to mount instead of its root.", max_length=1024),
            "subPathExpr": _text("Like `subPath`, with `$(VARIABLE)` expanded.", max_length=1024),
            "readOnly": _switch("Mount read-only."),
            "recursiveReadOnly": _text(
                "Whether mounts below are read-only too.",
                max_length=16,
                enum=["Disabled", "IfPossible", "Enabled"],
            ),
            "mountPropagation": _text(
                "How mounts made later are passed between host and container.",
                max_length=32,
                enum=["None", "HostToContainer", "Bidirectional"],
            ),
        },
    }


class Volume(Opaque):
    """One volume, as in a pod: a name and one of Kubernetes' volume sources."""

    kubernetes_schema: ClassVar[Schema] = {
        **_open(
            "One volume, as in a pod: a name and one of Kubernetes' volume sources.",
            {"name": _text("Name of the volume, for `podTemplate.volumeMounts`.", max_length=63, minLength=1)},
        ),
        "required": ["name"],
    }


class Affinity(Opaque):
    """Affinity, as in a pod."""

    kubernetes_schema: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "nodeAffinity": _open("Which nodes may be used, out of those that `gpus` asks for."),
            "podAffinity": _open("Pods to be near to."),
            "podAntiAffinity": _open("Pods to be away from."),
        },
    }


_IDENTITY: Final[Mapping[str, Schema]] = {
    "runAsUser": _integer("User that processes run as."),
    "runAsGroup": _integer("Primary group of the processes."),
    "runAsNonRoot": _switch("Refuse to start as root."),
    "seccompProfile": _open("Seccomp profile."),
    "appArmorProfile": _open("AppArmor profile."),
    "seLinuxOptions": _open("SELinux labels."),
}


class PodSecurityContext(Opaque):
    """Security context of the pod."""

    kubernetes_schema: ClassVar[Schema] = _open(
        "Security context of the pod.",
        {
            **_IDENTITY,
            "fsGroup": _integer("Group that owns the pod's volumes."),
            "fsGroupChangePolicy": _text(
                "When the owner of volumes is changed.", max_length=32, enum=["OnRootMismatch", "Always"]
            ),
            "supplementalGroups": {
                "type": "array",
                "maxItems": 64,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "integer", "format": "int64", "minimum": 0},
                "description": "Further groups of the processes.",
            },
        },
    )


class ContainerSecurityContext(Opaque):
    """Security context of a container."""

    kubernetes_schema: ClassVar[Schema] = _open(
        "Security context of a container.",
        {
            **_IDENTITY,
            "allowPrivilegeEscalation": _switch("Whether a process may gain more rights than its parent."),
            "privileged": _switch("Run with all rights on the node."),
            "readOnlyRootFilesystem": _switch("Mount the image's own files read-only."),
            "capabilities": _open("Capabilities to add and to drop."),
        },
    )

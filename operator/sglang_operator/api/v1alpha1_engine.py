"""The part of the resource that describes the SGLang server. Import it from `api.v1alpha1`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sglang_operator.api.base import ApiModel
from sglang_operator.api.forms import CPU, Argument, EnvName, EnvValue, Image, ObjectName, SecretKey, Size


class ApiKeyRef(ApiModel):
    """A key of the server, in a Secret of the service's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(
        description="Key of the Secret whose value is the server's key: printable ASCII, no line break at its end."
    )


class EnvVar(ApiModel):
    """One environment variable of the server."""

    name: EnvName = Field(description="Name of the variable.")
    value: EnvValue = Field(
        default="", description="Value, always a text: quote numbers and true or false. `$(NAME)` is not expanded."
    )


class EngineResources(ApiModel):
    """CPU and memory of the server container, beside its GPUs."""

    cpu: CPU | None = Field(default=None, description="CPU request. Unset: none.")
    memory: Size | None = Field(
        default=None, description="Memory request; shared memory counts against it. Unset: none."
    )
    memory_limit: Size | None = Field(
        default=None, description="Memory limit. Must be above `engine.sharedMemorySize`. Unset: none."
    )


class EngineSpec(ApiModel):
    """The SGLang server."""

    image: Image = Field(
        description="Image that holds SGLang (0.5.14 or newer) and its Python. Its files are never changed: an init "
        "container patches a copy of SGLang and checks that it imports."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the node pulls the image."
    )
    args: list[Argument] = Field(
        default_factory=list,
        max_length=256,
        description="Further flags of `sglang.launch_server`, one word an item (`--page-size`, then `64`), passed byte "
        "for byte and without a shell. Flags that a field of this resource sets are refused.",
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=128,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Environment variables of the server.",
    )
    api_key_secret_ref: ApiKeyRef | None = Field(
        default=None,
        description="Key that clients must send (SGLang's `--api-key`). The operator reads it too, to change the "
        "threshold. A changed Secret reaches a server only when its pod is replaced. Unset: everyone who reaches the "
        "server may use it.",
    )
    admin_api_key_secret_ref: ApiKeyRef | None = Field(
        default=None,
        description="Key for administrative requests, live updates among them (SGLang's `--admin-api-key`, "
        "0.5.8 and newer); `apiKeySecretRef` doesn't open them then. Unset: it does.",
    )
    port: int = Field(default=30_000, ge=1024, le=65_535, description="Port of the server's HTTP interface.")
    max_running_requests: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="SGLang's `--max-running-requests`: how many requests may decode together. Unset: SGLang's own "
        "choice, which is 48 with speculation, so that no threshold above 48 is ever reached.",
    )
    startup_timeout_seconds: int = Field(
        default=3600,
        ge=30,
        le=86_400,
        description="Seconds for download, loading, compiling and graph capture before a server that does not answer "
        "is restarted.",
    )
    shared_memory_size: Size = Field(
        default="16Gi", description="Size of `/dev/shm`, which NCCL needs. It is memory of the pod. At least 64Mi."
    )
    resources: EngineResources = Field(
        default_factory=EngineResources, description="CPU and memory of the server container, beside its GPUs."
    )

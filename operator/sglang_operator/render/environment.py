"""Environment of the containers: where the server may write, what it is told, and what the user adds.

The root file system is read-only and the user has no entry in the image's passwd, so everything that would go to a
home folder gets a writable place. Folders of compiled kernels lie on the cache volume: compiling them again takes
many minutes, and with a claim they outlive the pod. The names are those that SGLang's newest releases set by
themselves from `SGLANG_CACHE_DIR`; older ones need to be told each.

What a user sets in `engine.env` wins over these defaults, but not over what the operator must own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import ApiKeyRef, EnvVar, InferenceService, Manifest, SecretKeyRef
from sglang_operator.errors import SpecError
from sglang_operator.render.args import literal
from sglang_operator.render.network import threshold_name
from sglang_operator.render.volumes import CACHE_PATH, HOME_PATH

TOKEN_VARIABLE: Final = "HF_TOKEN"  # noqa: S105 - a name, no secret

DEFAULTS: Final[dict[str, str]] = {
    "HOME": HOME_PATH,
    # Python's getpass, which torch uses for folder names, fails for a user id without a name.
    "USER": "sglang",
    "XDG_CACHE_HOME": f"{CACHE_PATH}/xdg",
    "HF_HOME": f"{CACHE_PATH}/huggingface",
    "SGLANG_CACHE_DIR": f"{CACHE_PATH}/sglang",
    "SGLANG_DG_CACHE_DIR": f"{CACHE_PATH}/sglang/deep_gemm",
    "TRITON_CACHE_DIR": f"{CACHE_PATH}/sglang/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE_PATH}/sglang/inductor",
    "CUDA_CACHE_PATH": f"{CACHE_PATH}/sglang/nv",
    "TILELANG_CACHE_DIR": f"{CACHE_PATH}/sglang/tilelang",
    "TVM_FFI_CACHE_DIR": f"{CACHE_PATH}/sglang/tvm-ffi",
    "FLASHINFER_WORKSPACE_BASE": f"{CACHE_PATH}/sglang",
    # Without it `/health` sends a request of its own through the model: it waits behind a long prefill until a probe
    # gives up, and it shows in the rates that the threshold is decided by.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
}

_POD_FIELDS: Final[dict[str, str]] = {
    "POD_NAME": "metadata.name",
    "POD_NAMESPACE": "metadata.namespace",
    "NODE_NAME": "spec.nodeName",
}
_TOKEN_REMEDY: Final = "put the token into a Secret and name it in spec.model.tokenSecretRef"  # noqa: S105
_RESERVED: Final[dict[str, str]] = {
    names.THRESHOLD_VARIABLE: "use spec.speculation.disableThreshold",
    TOKEN_VARIABLE: _TOKEN_REMEDY,
    "HUGGING_FACE_HUB_TOKEN": _TOKEN_REMEDY,
    "HUGGINGFACE_HUB_TOKEN": _TOKEN_REMEDY,
    names.API_KEY_VARIABLE: "use spec.engine.apiKeySecretRef",
    names.ADMIN_API_KEY_VARIABLE: "use spec.engine.adminApiKeySecretRef",
    **dict.fromkeys(_POD_FIELDS, "leave it out"),
}


def shared(service: InferenceService, *, speculates: bool) -> list[Manifest]:
    """Environment of both containers, so that the patch container imports exactly what the server will.

    Raises:
        SpecError: `engine.env` holds a name twice, or one that the operator sets.
    """
    given = service.spec.engine.env
    _check(given)
    chosen = {variable.name for variable in given}
    defaults = [{"name": name, "value": value} for name, value in DEFAULTS.items() if name not in chosen]
    fields = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _POD_FIELDS.items()]
    return [*defaults, *fields, *(_threshold(service) if speculates else []), *map(_rendered, given)]


def secrets(service: InferenceService) -> list[Manifest]:
    """What only the server needs to know: the hub token, since it downloads, and the keys that it asks for."""
    engine = service.spec.engine
    return [
        *_secret(TOKEN_VARIABLE, service.spec.model.token_secret_ref),
        *_secret(names.API_KEY_VARIABLE, engine.api_key_secret_ref),
        *_secret(names.ADMIN_API_KEY_VARIABLE, engine.admin_api_key_secret_ref),
    ]


def _secret(variable: str, reference: SecretKeyRef | ApiKeyRef | None) -> list[Manifest]:
    if reference is None:
        return []
    return [{"name": variable, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}]


def _threshold(service: InferenceService) -> list[Manifest]:
    """The last decided threshold. A restarted server begins with it; a change of it restarts nothing."""
    key = {"name": threshold_name(service.name), "key": names.THRESHOLD_KEY}
    return [{"name": names.THRESHOLD_VARIABLE, "valueFrom": {"configMapKeyRef": key}}]


def _rendered(variable: EnvVar) -> Manifest:
    # The API server drops an empty value, so a rendered one would look like a difference for ever.
    return {"name": variable.name, **({"value": literal(variable.value)} if variable.value else {})}


def _check(given: Sequence[EnvVar]) -> None:
    seen: set[str] = set()
    for index, variable in enumerate(given):
        field = f"spec.engine.env[{index}]"
        if remedy := _RESERVED.get(variable.name):
            raise SpecError("InvalidSpec", f"{field}: the operator sets {variable.name}: {remedy}.")
        if variable.name in seen:
            raise SpecError("InvalidSpec", f"{field}: {variable.name} is there twice: keep one of them.")
        seen.add(variable.name)

"""The server's command line: the operator's flags in a fixed order, then the user's items byte for byte.

Kubernetes expands `$(NAME)` in a container's arguments and environment and reads `$$` as `$`. Text from the spec
must arrive as it was written, so each `$` of it is doubled; the references that are meant are to the threshold and
the API keys.
The rule: https://github.com/kubernetes/kubernetes, `third_party/forked/golang/expansion/expand.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import (
    Algorithm,
    ApiKeyRef,
    EngineSpec,
    InferenceService,
    InferenceServiceSpec,
    OffPath,
)
from sglang_operator.errors import SpecError
from sglang_operator.render import userargs
from sglang_operator.render.userargs import OwnFlag

SERVER_COMMAND: Final = ("python3", "-m", "sglang.launch_server")
LISTEN_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - the pod's own address, which only the kubelet knows
HUB_SCHEME: Final = "hf://"
OFF_PATHS: Final = {OffPath.AUTO: None, OffPath.DECODE: "decode", OffPath.ZERO_STEP: "zero-step"}
"""`Auto` is the server's own default. It is left out, so that pods from before the flag stay as they are."""


@dataclass(frozen=True, kw_only=True)
class _Flag:
    """A flag that the operator sets. `value`: None leaves it out, True makes it a bare switch.

    A `reference` is a value that Kubernetes is to expand. One that is `joined` follows the flag's name in the same
    word, since what it expands to may begin with a dash.
    """

    own: OwnFlag
    value: str | bool | None
    reference: bool = False
    joined: bool = False


def literal(text: str) -> str:
    """Return what Kubernetes expands to exactly this text."""
    return text.replace("$", "$$")


def engine_args(service: InferenceService) -> list[str]:
    """Arguments of the server.

    Raises:
        SpecError: an item of `engine.args` contradicts or repeats what a field sets, or can't be meant as it stands.
    """
    spec = service.spec
    userargs.check(
        spec.engine.args, own=own_flags(service), speculates=spec.speculation.algorithm is not Algorithm.NONE
    )
    words = [word for flag in _flags(spec) for word in _words(flag)]
    return [*words, *(literal(item) for item in spec.engine.args)]


def own_flags(service: InferenceService) -> list[OwnFlag]:
    """All flags that the operator sets, also those that this service leaves at the server's default."""
    return [flag.own for flag in _flags(service.spec)]


def _flags(spec: InferenceServiceSpec) -> list[_Flag]:
    return [*_server_flags(spec), *_key_flags(spec.engine), *_speculation_flags(spec)]


def _words(flag: _Flag) -> Iterator[str]:
    if flag.value is None or flag.value is False:
        return
    if flag.value is True:
        yield flag.own.name
        return
    value = flag.value if flag.reference else literal(flag.value)
    yield from (f"{flag.own.name}={value}",) if flag.joined else (flag.own.name, value)


def _server_flags(spec: InferenceServiceSpec) -> list[_Flag]:
    model, engine = spec.model, spec.engine
    requests = engine.max_running_requests
    return [
        _flag("--model-path", "spec.model.uri", _model_path(model.uri), "--model"),
        _flag("--revision", "spec.model.revision", model.revision),
        _flag("--served-model-name", "spec.model.servedName", model.served_name),
        _fixed("--host", LISTEN_ADDRESS, "the server must be reachable at the pod's address, so it listens on all"),
        _flag("--port", "spec.engine.port", str(engine.port)),
        _flag("--tp-size", "spec.gpus.count", str(spec.gpus.count), "--tensor-parallel-size"),
        _flag("--quantization", "spec.model.quantization", model.quantization),
        _flag("--max-running-requests", "spec.engine.maxRunningRequests", None if requests is None else str(requests)),
        _fixed("--enable-metrics", True, "the operator reads the server's metrics, so they are always on"),
    ]


def _key_flags(engine: EngineSpec) -> list[_Flag]:
    return [
        _key_flag("--api-key", "spec.engine.apiKeySecretRef", names.API_KEY_VARIABLE, engine.api_key_secret_ref),
        _key_flag(
            "--admin-api-key",
            "spec.engine.adminApiKeySecretRef",
            names.ADMIN_API_KEY_VARIABLE,
            engine.admin_api_key_secret_ref,
        ),
    ]


def _key_flag(name: str, field: str, variable: str, reference: ApiKeyRef | None) -> _Flag:
    own = OwnFlag(
        name=name,
        aliases=(),
        cause="everyone who may read the resource would know the key",
        remedy=f"put it into a Secret and name that in {field}",
    )
    return _Flag(own=own, value=f"$({variable})" if reference else None, reference=True, joined=True)


def _speculation_flags(spec: InferenceServiceSpec) -> list[_Flag]:
    """Flags of speculative decoding. Without it they are left out, but still the operator's."""
    speculation = spec.speculation
    on = speculation.algorithm is not Algorithm.NONE
    draft = speculation.draft_model
    if on and draft is None:
        raise SpecError("InvalidSpec", "spec.speculation.draftModel must be set when algorithm is EAGLE or EAGLE3.")
    path, revision = (_model_path(draft.uri), draft.revision) if draft is not None else (None, None)
    draft_tokens = speculation.num_draft_tokens or speculation.num_steps + 1
    flags = [
        _flag("--speculative-algorithm", "spec.speculation.algorithm", speculation.algorithm.value),
        _flag("--speculative-draft-model-path", "spec.speculation.draftModel.uri", path, "--speculative-draft-model"),
        _flag("--speculative-draft-model-revision", "spec.speculation.draftModel.revision", revision),
        _flag("--speculative-num-steps", "spec.speculation.numSteps", str(speculation.num_steps)),
        _flag("--speculative-eagle-topk", "spec.speculation.topK", str(speculation.top_k)),
        _flag("--speculative-num-draft-tokens", "spec.speculation.numDraftTokens", str(draft_tokens)),
        _threshold_flag(),
        _flag("--speculative-off-path", "spec.speculation.offPath", OFF_PATHS[speculation.off_path]),
        _fixed("--speculative-probe-permille", None, "the operator sets the share of probes in running servers"),
    ]
    return flags if on else [replace(flag, value=None) for flag in flags]


def _threshold_flag() -> _Flag:
    name, field = "--speculative-disable-batch-threshold", "spec.speculation.disableThreshold"
    own = OwnFlag(name=name, aliases=(), cause=f"{name} is set by {field}", remedy=f"use {field}")
    return _Flag(own=own, value=f"$({names.THRESHOLD_VARIABLE})", reference=True)


def _flag(name: str, field: str, value: str | None, *aliases: str) -> _Flag:
    cause = f"{name} is set by {field}" + (f" ({value})" if value is not None else "")
    return _Flag(own=OwnFlag(name=name, aliases=aliases, cause=cause, remedy=f"use {field}"), value=value)


def _fixed(name: str, value: str | bool | None, cause: str) -> _Flag:
    return _Flag(own=OwnFlag(name=name, aliases=(), cause=cause, remedy="leave the flag out"), value=value)


def _model_path(uri: str) -> str:
    return uri.removeprefix(HUB_SCHEME)

"""Services, decisions and patches for tests of rendering."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings

from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import InferenceService, Manifest, ThresholdSource, parse_spec
from sglang_operator.render.desired import Rendered, render
from sglang_operator.render.enginepatch import PatchArchive, PinnedPatch

PROPERTY = settings(max_examples=60, deadline=None)
"""Settings of property tests. A busy machine is no finding, so there is no deadline for one example."""
UID = "0b6d8c1e-5a4f-4d2b-9e3c-7f1a2b3c4d5e"
DECISION = Decision(
    batch_size=32,
    source=ThresholdSource.SPEC,
    decided_at=datetime(2026, 11, 30, 12, 0, tzinfo=UTC),
    message="the value that Auto starts from",
)

_SPECULATING: Manifest = {
    "model": {"uri": "hf://meta-llama/Llama-3.3-70B-Instruct"},
    "gpus": {"count": 8},
    "engine": {"image": "docker.io/lmsysorg/sglang:v0.5.23"},
    "speculation": {"algorithm": "EAGLE3", "draftModel": {"uri": "hf://example/llama-eagle3"}},
}


def archive(content: bytes = b"the engine patch") -> PatchArchive:
    return PatchArchive(digest=hashlib.sha256(content).hexdigest(), content=content)


def spec(changes: Mapping[str, Any] | None = None, *, speculates: bool = True) -> Manifest:
    """A spec with `changes` put in by dotted path, as in `{"engine.port": 9000}`."""
    result = copy.deepcopy(_SPECULATING)
    if not speculates:
        del result["speculation"]
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        holder = result
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = value
    return result


def service(
    changes: Mapping[str, Any] | None = None, *, speculates: bool = True, name: str = "llama"
) -> InferenceService:
    return InferenceService(
        namespace="team",
        name=name,
        uid=UID,
        generation=1,
        spec=parse_spec(spec(changes, speculates=speculates)),
    )


def rendered(
    given: InferenceService,
    *,
    decision: Decision = DECISION,
    patch: PatchArchive | None = None,
    pinned: PinnedPatch | None = None,
) -> Rendered:
    return render(given, decision=decision, patch=patch or archive(), pinned=pinned)


def only(result: Rendered, kind: str, name_end: str = "") -> Manifest:
    """The one manifest of a kind whose name ends in `name_end`."""
    (found,) = [
        manifest
        for manifest in result.manifests
        if manifest["kind"] == kind and manifest["metadata"]["name"].endswith(name_end)
    ]
    return found


def template(given: InferenceService) -> Manifest:
    """The pod template that a service is rendered to."""
    found: Manifest = only(rendered(given), "Deployment")["spec"]["template"]
    return found


def engine(given: InferenceService) -> Manifest:
    """The server's container."""
    (found,) = template(given)["spec"]["containers"]
    container: Manifest = found
    return container


def patcher(given: InferenceService) -> Manifest:
    """The patch container."""
    (found,) = template(given)["spec"]["initContainers"]
    container: Manifest = found
    return container

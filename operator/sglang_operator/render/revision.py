"""Digests of manifests: what was applied, and which pods belong to which spec.

Two revisions of the pod template are kept apart. The *revision* covers all of it, engine patch included, and is what
pods carry. The *spec revision* leaves the patch out, so that it tells whether the user changed anything: as long as
it stays, pods keep the patch they have, and a new operator with a new patch rolls nothing. The decided threshold is
in neither, since pods read it from a ConfigMap.
"""

from __future__ import annotations

import hashlib
import json

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest


def digest(manifest: Manifest) -> str:
    """Return 16 hexadecimal digits that depend on the content alone, not on the order of keys."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def annotated(manifest: Manifest, key: str, value: str) -> Manifest:
    """Return a copy of an object or a pod template with one more annotation."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), key: value}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def sealed(manifest: Manifest) -> Manifest:
    """Return a copy that carries the digest of all the rest, to be compared with a later rendering."""
    return annotated(manifest, names.ANNOTATION_APPLIED, digest(manifest))

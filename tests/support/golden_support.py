"""Golden cases: an InferenceService as a user writes it, and every manifest that it is rendered to."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace

import yaml
from render_support import DECISION, UID, rendered

from sglang_operator.api.v1alpha1 import InferenceService, Manifest, parse_spec
from sglang_operator.render.desired import Rendered

FOLDER = pathlib.Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenCase:
    """One folder of `tests/golden`."""

    folder: pathlib.Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def expected_file(self) -> pathlib.Path:
        return self.folder / "expected.yaml"

    def custom_resource(self, *, namespace: str = "team") -> Manifest:
        """The InferenceService as a user applies it."""
        manifest: Manifest = yaml.safe_load((self.folder / "service.yaml").read_text(encoding="utf-8"))
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}

    def render(self, *, namespace: str = "team") -> Rendered:
        """Render the case as a new operator meets it, with the threshold that the spec declares."""
        manifest = self.custom_resource(namespace=namespace)
        service = InferenceService(
            namespace=namespace,
            name=manifest["metadata"]["name"],
            uid=UID,
            generation=1,
            spec=parse_spec(manifest["spec"]),
        )
        declared = service.spec.speculation.disable_threshold.batch_size
        decision = DECISION if declared is None else replace(DECISION, batch_size=declared)
        return rendered(service, decision=decision)


def golden_cases() -> list[GoldenCase]:
    """All cases, by name."""
    return [GoldenCase(file.parent) for file in sorted(FOLDER.glob("*/service.yaml"))]

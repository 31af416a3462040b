"""What a patched tree claims, written down for the program that proves it.

The values come from this program, not from the tree: a tree that is wrong about itself must not prove itself right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .manifest import Manifest
from .names import FIELDS, EngineField
from .runtime import settings
from .worker import WORKER


@dataclass(frozen=True)
class FieldClaim:
    """One new field: what its flag accepts, as text and value, and what it refuses; the same for live updates."""

    name: str
    flag: str
    default: int | str
    accepted: Sequence[tuple[str, int | str]]
    refused: Sequence[str]
    live_accepted: Sequence[int]
    live_refused: Sequence[object]


@dataclass(frozen=True)
class Claims:
    """`switchable`: the worker that SGLang hands out is hooked; otherwise live updates must be refused."""

    generation: int
    release: str | None
    members: Sequence[str]
    switchable: bool
    fields: Sequence[FieldClaim]

    def json(self) -> str:
        """Return the claims as the probe reads them."""
        return json.dumps(asdict(self))


def claims_of(manifest: Manifest) -> Claims:
    """Return what a tree with this manifest must do."""
    members = [path for path in manifest.members if path.endswith(".py")]
    fields = [_field_claim(field) for field in FIELDS]
    return Claims(manifest.generation, manifest.release, members, WORKER in members, fields)


def _field_claim(field: EngineField) -> FieldClaim:
    if field.kind is str:
        accepted = [(word, word) for word in settings.CHOICES[field.name]]
        return FieldClaim(field.name, field.flag, field.default, accepted, ["sometimes", ""], [], [])
    highest = settings.HIGHEST[field.name]
    return FieldClaim(
        field.name,
        field.flag,
        field.default,
        accepted=[(str(value), value) for value in (0, 8, highest)],
        refused=["eight", "-1", "8.0", str(highest + 1), ""],
        live_accepted=[8, 0, highest] if field.live else [],
        live_refused=[-1, highest + 1, 8.0, "8", True, None] if field.live else [],
    )

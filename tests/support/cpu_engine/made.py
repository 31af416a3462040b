"""All models of the tests, in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cpu_engine import models, models_mla

SEED = 7


@dataclass(frozen=True)
class Models:
    """Folders of the targets and of the draft that serves both."""

    target: Path
    latent_target: Path
    draft: Path

    @classmethod
    def under(cls, folder: Path) -> Self:
        """Return where they are in a folder."""
        return cls(folder / "target", folder / "latent-target", folder / "draft")


def make(folder: Path) -> Models:
    """Write them."""
    draw = models.Draw(SEED)
    shared = models.Shared(draw)
    made = Models.under(folder)
    models.write(made.target, models.target_weights(shared, draw), models.target_settings())
    models.write(made.draft, models.draft_weights(shared, draw), models.draft_settings())
    models.write(made.latent_target, models_mla.target_weights(shared, draw), models_mla.target_settings())
    return made

"""An error that a test switches on while the server runs, to see that its comparison notices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SWITCH = "CPU_ENGINE_PLANTED"
"""Names a file; the error is in force as long as it exists."""


def moved(positions: Any, batch: Any) -> Any:
    """Return the positions of the target's tokens: one too high in decode steps, drafting or not, while switched on."""
    decodes = batch.forward_mode.is_target_verify() or batch.forward_mode.is_decode()
    return positions + 1 if decodes and Path(os.environ[SWITCH]).exists() else positions

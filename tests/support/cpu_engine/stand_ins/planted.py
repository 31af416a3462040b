"""Errors that a test switches on while the server runs, to see that its comparison notices."""

from __future__ import annotations

import os
from pathlib import Path

SWITCH = "CPU_ENGINE_PLANTED"
"""Names a file; the error that this file names is in force."""


def on(error: str) -> bool:
    """Tell whether an error is in force."""
    file = os.environ.get(SWITCH)
    return file is not None and Path(file).read_text() == error

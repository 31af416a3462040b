"""What tests need inside the server: errors that they switch on while it runs, and notes of its decode steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SWITCH = "CPU_ENGINE_PLANTED"
"""Names a file; the error that this file names is in force."""

STEP_NOTES = "CPU_ENGINE_STEP_NOTES"
"""Names a file, which gets a line for each running request of each decode step."""


def on(error: str) -> bool:
    """Tell whether an error is in force."""
    file = os.environ.get(SWITCH)
    return file is not None and Path(file).read_text() == error


def note(batch: Any, result: Any, predict_tokens: list[list[int]]) -> None:
    """Note how many tokens a step made for each request, and where: before they are added to its answer."""
    file = os.environ.get(STEP_NOTES)
    if file is None:
        return
    drafted = result.speculative_num_draft_tokens > 1
    with Path(file).open("a") as notes:
        for request, tokens in zip(batch.reqs, predict_tokens, strict=True):
            if request.finished_reason is None:
                where = {"prompt": list(request.origin_input_ids), "at": len(request.output_ids)}
                notes.write(json.dumps({**where, "tokens": len(tokens), "drafted": drafted}) + "\n")

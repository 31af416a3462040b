"""Edits that change nothing until a test asks for it: planted errors, which a comparison of outputs must notice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from cpu_engine.edits import Edit

SWITCH = "CPU_ENGINE_PLANTED"
STEP_NOTES = "CPU_ENGINE_STEP_NOTES"
"""See `stand_ins/planted.py`."""

LENGTHS_ON_THE_HOST = {"CPU_ENGINE_LENGTHS": "1"}
"""Variable of a server that asks for lengths on the host, as it does with flashinfer, which can't run on a CPU."""

STEPS = ("DECODE", "TARGET_VERIFY")


def _if_on(error: str, statement: str) -> str:
    return f"if __import__('planted').on('{error}'): {statement}"


def _off_path(module: str, owner: str, function: str, error: str, changed: str, by: int = 1) -> Edit:
    file = f"srt/speculative/specpatch/offpath_{module}.py"
    return Edit((file,), function, _if_on(error, f"{changed} = {changed} + {by}"), owner=owner)


FAULTS = (
    Edit(
        ("srt/models/llama.py",),
        "forward",
        _if_on("position", f"positions = positions + (forward_batch.forward_mode.name in {STEPS})"),
        ("positions", "forward_batch"),
        owner="LlamaForCausalLM",
    ),
    _off_path("decode", "TargetDecode", "_init_new", "slot", "batch.out_cache_loc"),
    _off_path("draft", "DraftKeyWriter", "write", "draft position", "positions"),
    _off_path("draft", "DraftKeyWriter", "write", "draft slot", "slots"),
    _off_path("draft", "DraftLog", "write", "prompt position", "positions"),
    # By one, almost all keys would still be in a slot of their prompt, and attention doesn't ask in which.
    _off_path("draft", "DraftLog", "write", "prompt slot", "slots", by=7),
    _off_path("lengths", "HostLengths", "grew", "length", "batch.seq_lens_cpu"),
    Edit(
        ("srt/speculative/specpatch/hooks.py",),
        "note_result",
        "__import__('planted').note(batch, result, predict_tokens)",
        ("batch", "result", "predict_tokens"),
    ),
    Edit(
        ("srt/managers/overlap_utils.py",),
        "decide_needs_cpu_seq_lens",
        "if 'CPU_ENGINE_LENGTHS' in __import__('os').environ: return True",
    ),
)
"""Off by one, if not said otherwise: positions of decode steps, drafting or not; cache slots of steps without drafts;
positions and slots of what is written to the draft model's cache apart from drafting, late or of prompts; lengths on
the host. And notes of all steps."""


class StepNotes:
    """What each decode step made in the server that gets `variables`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "steps"
        self.clear()
        self.variables = {STEP_NOTES: str(self._file)}

    def clear(self) -> None:
        """Forget all."""
        self._file.write_text("")

    def drafted(self) -> dict[tuple[tuple[int, ...], int], int]:
        """Return the tokens of each step that drafted, by the request's prompt and by how much of its answer it had."""
        notes = [json.loads(line) for line in self._file.read_text().splitlines()]
        return {(tuple(note["prompt"]), note["at"]): note["tokens"] for note in notes if note["drafted"]}


class Switch:
    """Makes one planted error at a time in the server that gets `variables`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "planted"
        self._file.write_text("")
        self.variables = {SWITCH: str(self._file)}

    @contextlib.contextmanager
    def wrong(self, error: str) -> Iterator[None]:
        """Make an error meanwhile."""
        self._file.write_text(error)
        try:
            yield
        finally:
            self._file.write_text("")

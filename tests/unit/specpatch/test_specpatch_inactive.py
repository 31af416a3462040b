"""What a server says whose worker can't stop drafting."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_specpatch.runtime import hooks


@pytest.mark.parametrize("name", ["EAGLEWorkerV2", "EAGLEWorker", "NGRAMWorker", "MultiLayerEagleWorkerV2"])
def test_the_read_back_names_the_worker_that_was_loaded(name: str) -> None:
    """Also where it has the name of the one that could: the patch is attached by its `__init__`, or not at all."""
    state: dict[str, object] = {}
    hooks.add_readback(SimpleNamespace(draft_worker=type(name, (), {})()), state)
    said = state["specpatch"]
    assert isinstance(said, dict)
    assert said["active"] is False
    assert said["inactive_reason"] == (
        f"worker {name} has no zero-step state (only EAGLEWorkerV2 of SGLang 0.5.14 and newer has)"
    )

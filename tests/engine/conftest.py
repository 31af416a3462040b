"""One workshop of real SGLang trees for the whole session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from real_sglang import Workshop, shared_folder


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Patches each release once for all processes of the session; the trees, about 2 GB, are gone at the end."""
    folder = tmp_path_factory.mktemp("engine")
    base = tmp_path_factory.getbasetemp()
    with shared_folder((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "patched") as shared:
        yield Workshop(folder, shared)
    shutil.rmtree(folder)

"""One workshop of real SGLang trees for the whole session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from real_sglang import Workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Patches each release once; the trees, about 1 GB, are gone at the end."""
    folder = tmp_path_factory.mktemp("engine")
    yield Workshop(folder)
    shutil.rmtree(folder)

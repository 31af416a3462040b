"""Real sources patched in place, as in a Dockerfile or on a bare machine: proven where they lie, and restored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from real_sglang import RELEASES, Workshop

from sglang_specpatch.manifest import digests

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def _everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Modes of all, and times of the files."""
    statuses = ((str(place), place.stat(), place.is_file()) for place in folder.rglob("*"))
    return {name: (status.st_mode, status.st_mtime_ns if is_file else 0) for name, status, is_file in statuses}


@pytest.mark.parametrize("release", ["0.5.12", RELEASES[-1]])
def test_it_is_patched_proven_started_and_restored(workshop: Workshop, release: str, tmp_path: Path) -> None:
    site = workshop.copy(release, f"in-place-{release}")
    stamps, before = _everything(site), digests(site / "sglang")
    environment = workshop.environment(site)

    def run(*arguments: str) -> dict[str, str]:
        done = workshop.run(*arguments, "--json", environment=environment)
        assert done.returncode == 0, done.stdout
        result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return result

    assert run("apply", "--in-place")["path"] == str(site / "sglang")
    assert "already in place" in run("apply", "--in-place", "--no-import-check")["message"]
    copied = run("apply", "--to", str(tmp_path / "copy"), "--no-import-check")
    assert digests(tmp_path / "copy/sglang") == digests(site / "sglang")
    assert copied["release"] == release
    assert run("undo", "--in-place")["release"] == release
    assert digests(site / "sglang") == before
    # An import may leave caches beside files that were never touched; the program itself leaves nothing.
    assert {place: stamp for place, stamp in _everything(site).items() if place in stamps} == stamps
    assert {place for place in _everything(site) if place not in stamps and "__pycache__" not in place} == set()
    shutil.rmtree(site)

"""What a server needs before it can start, made once and kept in the cache: models, and trees that run on a CPU."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

from real_sglang import Workshop, fetch

from cpu_engine import made
from cpu_engine.edits import EDITS, prepare
from cpu_engine.faults import FAULTS
from sglang_specpatch import archive

HERE = Path(__file__).resolve().parent
STAND_INS = HERE / "stand_ins"
KEPT_SECONDS = 2 * 24 * 3600
"""Trees that no server was started from for so long are removed."""


def _cache() -> Path:
    root: Path = fetch.cache()
    return root / "cpu-engine"


def made_models() -> made.Models:
    """Return the models, written when they are missing or their program has changed."""
    programs = [(HERE / name).read_bytes() for name in ("made.py", "models.py", "models_mla.py")]
    folder = _cache() / f"models-{hashlib.sha256(b''.join(programs)).hexdigest()[:12]}"
    with fetch.locked("cpu-engine-models"):
        if not folder.exists():
            partial = fetch.fresh(folder.with_suffix(".partial"))
            made.make(partial)
            partial.rename(folder)
    return made.Models.under(folder)


def tree(release: str) -> Path:
    """Return the parent folder of a `sglang` package with the product's patch, the edits for the CPU and the faults.

    Trees are named after all that they are made of; compiled files stay with them, which halves the time of later
    starts.
    """
    program, edits = archive.build(), (*EDITS, *FAULTS)
    digest = hashlib.sha256(b"\0".join([program, repr((fetch.pins()[release], edits)).encode()])).hexdigest()[:12]
    folder = _cache() / f"tree-{release}-{digest}"
    with fetch.locked(f"cpu-engine-{release}"):
        if not folder.exists():
            _remove_unused()
            partial = fetch.fresh(folder.with_name(f"{folder.name}.partial"))
            _patch(program, release, partial / "tree")
            prepare(partial / "tree" / "sglang", release, edits)
            _take_compiled(partial / "tree", release)
            (partial / "tree").rename(folder)
            shutil.rmtree(partial)
        os.utime(folder)
    return folder


def _patch(program: bytes, release: str, target: Path) -> None:
    workshop = Workshop(target.parent)
    workshop.program.write_bytes(program)
    done = workshop.apply(workshop.source(release).parent, target, "--no-import-check")
    if done.exit_code != 0:
        raise RuntimeError(f"SGLang {release} can't be patched:\n{done.log}")


def _take_compiled(target: Path, release: str) -> None:
    """Link the compiled files of the last tree of a release: they hold for all files that are the same, by their time.

    Of the others Python makes new ones, since it compares time and size of the source.
    """
    earlier = [folder for folder in _cache().glob(f"tree-{release}-*") if not folder.name.endswith(".partial")]
    if not earlier:
        return
    last = max(earlier, key=lambda folder: folder.stat().st_mtime)
    for compiled in last.rglob("*.pyc"):
        place = target / compiled.relative_to(last)
        if place.parent.parent.is_dir():
            place.parent.mkdir(exist_ok=True)
            os.link(compiled, place)


def _remove_unused() -> None:
    for old in _cache().glob("tree-*"):
        if old.stat().st_mtime < time.time() - KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


FOREIGN = ("PYTEST_", "PYTHON", "SGLANG_")
"""Variables that a server does not inherit. PYTHONDONTWRITEBYTECODE alone would double the time of each start."""


def environment(package: Path) -> dict[str, str]:
    """Return the environment of a server that runs from a tree, given by its parent folder."""
    packages: Path = fetch.environment()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(map(str, [package, STAND_INS, packages])),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        # Without this library tensor-parallel ranks fall back to gloo; with it they ask for a GPU.
        "SGLANG_NCCL_SO_PATH": "none",
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "SGLANG_SPECPATCH_CHECK_LENGTHS": "1",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0",
    }

"""The source of the module that is added to SGLang, read from this package (a folder or a zipapp)."""

from __future__ import annotations

import pkgutil

MODULES = (
    "__init__",
    "buckets",
    "counters",
    "engine",
    "hooks",
    "inactive",
    "offpath",
    "offpath_decode",
    "offpath_draft",
    "offpath_lengths",
    "offpath_prefill",
    "offpath_steps",
    "offpath_support",
    "offpath_types",
    "ports",
    "probing",
    "requests",
    "reservation",
    "settings",
    "threshold",
    "verify_tile",
)


def read() -> dict[str, bytes]:
    """Return the added module's files by name."""
    return {f"{name}.py": _resource(f"runtime/{name}.py") for name in MODULES}


def probe() -> str:
    """Return the source of the program that the import check runs in a fresh interpreter."""
    return _resource("probe.py").decode()


def _resource(name: str) -> bytes:
    data = pkgutil.get_data("sglang_specpatch", name)
    assert data is not None, name
    return data

"""Ask the server's own interpreter which `sglang` it would load.

A fresh interpreter with the same environment and working directory answers, because only the import system knows
the order of `PYTHONPATH`, `.pth` files, finder hooks of editable installs and the working directory. The package is
found, not imported. A tree that is already a product of this program is left out of the search.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .names import PACKAGE
from .result import Reason, Refusal

LOCATE_TIMEOUT_SECONDS = 120

_PROBE = """
import importlib.util, json, sys
try:
    spec = importlib.util.find_spec("sglang")
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    raise SystemExit
version = None
try:
    from importlib import metadata
    version = metadata.version("sglang")
except Exception:
    pass
print(json.dumps(None if spec is None else {
    "origin": spec.origin,
    "locations": [str(place) for place in spec.submodule_search_locations or ()],
    "loader": type(spec.loader).__name__,
    "version": version,
    "path": sys.path,
}))
"""


@dataclass(frozen=True)
class Found:
    """The package directory that will be loaded, and its release where the tree or its metadata says one."""

    package: Path
    release: str | None


def search_path(environment: dict[str, str], *, without: Path | None = None, first: Path | None = None) -> str:
    """Return PYTHONPATH with `first` in front and `without` taken out, keeping everything else in order."""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    dropped = {str(place.resolve()) for place in (without, first) if place is not None}
    kept = [entry for entry in entries if str(Path(entry).resolve()) not in dropped]
    return os.pathsep.join([str(first), *kept] if first is not None else kept)


def locate(environment: dict[str, str], *, without: Path | None = None, first: Path | None = None) -> Found:
    """Find the tree that a server started now, here, with this environment would load.

    Raises Refusal: SourceNotFound when there is none or only a bare folder, UnsupportedSource when it is no plain
    directory of source files.
    """
    answer = _ask({**environment, "PYTHONPATH": search_path(environment, without=without, first=first)})
    if not isinstance(answer, dict) or "error" in answer:
        detail = f" ({answer['error']})" if isinstance(answer, dict) else ""
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{sys.executable} finds no package {PACKAGE}{detail}. Use an image that holds SGLang, or start this "
            "program with the interpreter that the server uses.",
        )
    locations = [str(place) for place in answer["locations"]]
    if answer["origin"] is None:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{PACKAGE} is a bare folder without __init__.py ({', '.join(locations)}), which hides the real package. "
            "Start in another working directory, or remove the folder.",
            path=locations[0] if locations else "",
        )
    origin = Path(answer["origin"])
    if not origin.is_file():
        raise Refusal(
            Reason.UNSUPPORTED_SOURCE,
            f"{PACKAGE} comes from {origin}, which is no plain file ({answer['loader']}): a zip on the path can't be "
            "patched. Install SGLang as ordinary files.",
            path=str(origin),
        )
    package = origin.parent
    return Found(package, release_of(package) or answer["version"])


def release_of(package: Path) -> str | None:
    """Read the release from the tree's own version files, without importing them; None if they don't say."""
    for name in ("_version.py", "version.py"):
        try:
            tree = ast.parse((package / name).read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
                targets = {target.id for target in statement.targets if isinstance(target, ast.Name)}
                if "__version__" in targets and isinstance(statement.value.value, str):
                    return statement.value.value
    return None


def _ask(environment: dict[str, str]) -> object:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LOCATE_TIMEOUT_SECONDS,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        tail = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{sys.executable} can't be asked for {PACKAGE}: {tail[0]}. Check that this interpreter starts in this "
            "environment.",
        )
    answer: object = json.loads(lines[-1])
    return answer

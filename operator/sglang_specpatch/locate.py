"""Ask the server's own interpreter which `sglang` it would load.

A fresh interpreter with the same environment and working directory answers, because only the import system knows
the order of `PYTHONPATH`, `.pth` files, finder hooks of editable installs and the working directory. The package is
found, not imported. A tree that is already a product of this program can be left out of the search.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .names import PACKAGE
from .result import Reason, Refusal

LOCATE_TIMEOUT_SECONDS = 120

_ANSWER = "specpatch-found "
_PROBE = """
import importlib.util, json, os, sys
try:
    spec = importlib.util.find_spec("sglang")
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"}
else:
    answer = None if spec is None else {
        "origin": spec.origin,
        "locations": [os.path.abspath(place) for place in spec.submodule_search_locations or ()],
        "loader": type(spec.loader).__name__,
        "bare": [place for place in (os.path.join(os.path.abspath(entry), "sglang") for entry in sys.path)
                 if os.path.isdir(place) and not os.path.exists(os.path.join(place, "__init__.py"))],
    }
try:
    from importlib import metadata
    distribution = metadata.distribution("sglang")
    answer["version"] = distribution.version
    answer["installed"] = [str(distribution.locate_file("")), distribution.read_text("direct_url.json") or ""]
except Exception:
    pass
print()
print("specpatch-found " + json.dumps(answer))
"""


@dataclass(frozen=True)
class Found:
    """The package directory that will be loaded, and its release where the tree or its metadata says one."""

    package: Path
    release: str | None
    passed_over: tuple[str, ...] = ()
    """Bare folders named `sglang` that the import system saw and did not take."""


def search_path(environment: dict[str, str], *, without: Path | None = None, first: Path | None = None) -> str:
    """Return PYTHONPATH with `first` in front and `without` taken out, keeping everything else in order."""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    dropped = {str(place.resolve()) for place in (without, first) if place is not None}
    kept = [entry for entry in entries if str(Path(entry).resolve()) not in dropped]
    return os.pathsep.join([str(first), *kept] if first is not None else kept)


def locate(
    environment: dict[str, str],
    *,
    without: Path | None = None,
    first: Path | None = None,
    interpreter: Sequence[str] = (),
) -> Found:
    """Find the tree that a server started now, here, with this environment would load.

    `interpreter` is the server's, with its options; by default the one that runs this program. Raises Refusal:
    SourceNotFound when there is none or only a bare folder, UnsupportedSource when it is no plain directory of source
    files.
    """
    python = [*interpreter] or [sys.executable]
    answer = _ask(python, {**environment, "PYTHONPATH": search_path(environment, without=without, first=first)})
    if answer is None or "error" in answer:
        detail = f" ({answer['error']})" if answer else ""
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{python[0]} finds no package {PACKAGE}{detail}. Use an image that holds SGLang, or start this "
            "program with the interpreter that the server uses.",
        )
    locations = [str(place) for place in answer["locations"]]
    if answer["origin"] is None:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{PACKAGE} is a bare folder without __init__.py ({', '.join(locations)}), and no real package comes "
            "before it. Start in another working directory, or remove the folder.",
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
    return Found(package, release_of(package) or _installed_release(package, answer), tuple(answer["bare"]))


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


def _installed_release(package: Path, answer: dict[str, Any]) -> str | None:
    """Take the version of the installed distribution only if this package is its own: beside it, or its checkout."""
    place, direct_url = answer.get("installed", ("", ""))
    checkout = ""
    if direct_url:
        url = urlsplit(str(json.loads(direct_url).get("url", "")))
        checkout = unquote(url.path) if url.scheme == "file" else ""
    own = any(root and Path(root).resolve() in package.resolve().parents for root in (place, checkout))
    return str(answer["version"]) if own else None


def _ask(python: list[str], environment: dict[str, str]) -> dict[str, Any] | None:
    try:
        done = subprocess.run(
            [*python, "-c", _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOCATE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _mute(python, str(error)) from error
    lines = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if done.returncode != 0 or not lines:
        raise _mute(python, (done.stderr.strip().splitlines()[-1:] or ["no output"])[0])
    answer: dict[str, Any] | None = json.loads(lines[-1].removeprefix(_ANSWER))
    return answer


def _mute(python: list[str], trouble: str) -> Refusal:
    return Refusal(
        Reason.SOURCE_NOT_FOUND,
        f"{python[0]} can't be asked for {PACKAGE}: {trouble}. Check that this interpreter starts in this environment.",
    )

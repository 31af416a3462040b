"""Which files a build context holds, and one digest for all that an image is made of."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    keeps: bool


def _rules(context: Path, dockerfile: Path) -> list[_Rule]:
    """The ignore file's rules, by the builders' own lookup: one named after the Dockerfile goes first."""
    for file in (dockerfile.with_name(dockerfile.name + ".dockerignore"), context / ".dockerignore"):
        if file.is_file():
            lines = [line.strip() for line in file.read_text().splitlines()]
            return [_rule(line) for line in lines if line and not line.startswith("#")]
    return []


def _rule(line: str) -> _Rule:
    keeps = line.startswith("!")
    path = os.path.normpath(line.lstrip("!").strip()).strip("/")
    expression = ""
    for part in re.split(r"(\*\*/?|\*|\?)", path):
        expression += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
    return _Rule(re.compile(f"{expression}(?:/.*)?"), keeps)


def _ignored(path: str, rules: list[_Rule]) -> bool:
    verdict = False
    for rule in rules:
        if rule.pattern.fullmatch(path):
            verdict = not rule.keeps
    return verdict


def files(context: Path, dockerfile: Path) -> Iterator[Path]:
    """The context's files and symbolic links, in a fixed order, without the ignored ones."""
    rules = _rules(context, dockerfile)
    may_prune = not any(rule.keeps for rule in rules)
    for folder, folders, names in os.walk(context):
        relative = os.path.relpath(folder, context)
        prefix = "" if relative == "." else f"{relative}/"
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if name not in links and not (may_prune and _ignored(prefix + name, rules))
        )
        for name in sorted(names + links):
            if not _ignored(prefix + name, rules):
                yield Path(folder) / name


def digest(context: Path, dockerfile: Path, *others: str) -> str:
    """Changes when the Dockerfile, a file's name, mode or content, or one of the other strings changes."""
    total = hashlib.sha256()
    for other in others:
        total.update(f"{len(other)}:{other}\n".encode())
    total.update(dockerfile.read_bytes())
    for file in files(context, dockerfile):
        mode = file.lstat().st_mode
        total.update(f"\n{file.relative_to(context)} {mode & 0o111:o} ".encode())
        total.update(_content_digest(file))
    return total.hexdigest()


def _content_digest(file: Path) -> bytes:
    if file.is_symlink():
        return str(file.readlink()).encode()
    content = hashlib.sha256()
    if file.is_file():
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                content.update(chunk)
    return content.digest()

"""The files of a tree that are being edited, and what was hooked into each."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from .anchors import AnchorAmbiguous, AnchorMissing
from .edit import EditRefused, SourceFile
from .names import RUNTIME_NAME, RUNTIME_PARENT_MODULE
from .result import Reason, Refusal

Reader = Callable[[str], bytes | None]
"""Returns the bytes of a file of the tree by its path inside `sglang/`, or None."""


@dataclass(frozen=True)
class Member:
    """One patched SGLang file: its path inside `sglang/`, its bytes before and after, its hooks by name."""

    path: str
    before: bytes
    after: bytes
    hooks: tuple[str, ...]


class Edits:
    """The files being edited, read once each; keeps the hook names for the log."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._files: dict[str, SourceFile] = {}
        self._hooks: dict[str, list[str]] = {}

    def has(self, path: str) -> bool:
        """Tell whether the tree has a file."""
        return path in self._files or self._read(path) is not None

    def open(self, path: str) -> SourceFile:
        """Return a file of the tree.

        Raises AnchorMissing when it isn't there, and Refusal(UnknownPatchState) when it carries this patch already.
        """
        if path not in self._files:
            data = self._read(path)
            if data is None:
                raise AnchorMissing(f"{path}: no such file")
            self._files[path] = SourceFile(path, data)
            _refuse_patched(self._files[path])
        return self._files[path]

    def hooked(self, path: str, hook: str) -> None:
        """Note a hook of an opened file; the first one brings the import of the added module with it."""
        if path not in self._hooks:
            _import_runtime(self._files[path])
        self._hooks.setdefault(path, []).append(hook)

    def members(self) -> tuple[Member, ...]:
        """Return every hooked file as it is and as it will be; raises EditRefused when an edit isn't the meant one."""
        return tuple(
            Member(path, self._files[path].data, self._files[path].result(), tuple(hooks))
            for path, hooks in sorted(self._hooks.items())
        )


def insert_all(insert: Callable[[Edits], None], edits: Edits, trial: Edits) -> str | None:
    """Put hooks in together or not at all; returns the place that was not found.

    `trial` is a second set of edits of the same tree, thrown away: so a hook that can't be placed leaves no other
    behind.
    """
    try:
        insert(trial)
        trial.members()
    except (AnchorMissing, AnchorAmbiguous, EditRefused) as error:
        return str(error)
    insert(edits)
    return None


def _refuse_patched(source: SourceFile) -> None:
    if any(_imports_runtime(statement) for statement in source.tree.body):
        raise Refusal(
            Reason.UNKNOWN_PATCH_STATE,
            f"{source.path} of the source tree already carries this patch. Give the pristine SGLang of the image "
            "as the source: reinstall sglang there, or take the patched folder off PYTHONPATH.",
        )


def _import_runtime(source: SourceFile) -> None:
    first = next((statement for statement in source.tree.body if _is_sglang_import(statement)), None)
    if first is None:
        raise AnchorMissing(f"{source.path}: a module-level import from sglang")
    source.insert_before(source.tree.body, first, f"from {RUNTIME_PARENT_MODULE} import {RUNTIME_NAME}")


def _is_sglang_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "sglang"


def _imports_runtime(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.ImportFrom)
        and statement.module == RUNTIME_PARENT_MODULE
        and any(alias.name == RUNTIME_NAME for alias in statement.names)
    )

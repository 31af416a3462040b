"""What a run ended with: one frozen value, one JSON line, one exit code.

Everything that can go wrong leaves the program as a `Refusal`, whose message says the cause and the next step.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum

from .names import GENERATION

TERMINATION_LOG_BYTES = 4096
"""Kubernetes keeps this much of /dev/termination-log."""


class Reason(str, Enum):  # noqa: UP042 - StrEnum is not in Python 3.10, which images still carry
    """Why a run ended, in one word; the operator copies it into a condition."""

    PATCHED = "Patched"
    SHOWN = "Shown"
    UNDONE = "Undone"
    UNSUPPORTED_SOURCE = "UnsupportedSource"
    UNSUPPORTED_WORKER = "UnsupportedWorker"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_NOT_WRITABLE = "SourceNotWritable"
    UNKNOWN_PATCH_STATE = "UnknownPatchState"
    IMPORT_CHECK_FAILED = "ImportCheckFailed"
    TORCH_ABI_MISMATCH = "TorchABIMismatch"
    MISSING_SYSTEM_LIBRARY = "MissingSystemLibrary"
    NO_GPU_VISIBLE = "NoGPUVisible"
    PACKAGE_MISMATCH = "PackageMismatch"
    NO_SPACE = "NoSpace"


SUCCESSES = frozenset({Reason.PATCHED, Reason.SHOWN, Reason.UNDONE})
_CHECK_REASONS = frozenset(
    {
        Reason.IMPORT_CHECK_FAILED,
        Reason.TORCH_ABI_MISMATCH,
        Reason.MISSING_SYSTEM_LIBRARY,
        Reason.NO_GPU_VISIBLE,
        Reason.PACKAGE_MISMATCH,
    }
)
_VOLUME_REASONS = frozenset({Reason.SOURCE_NOT_WRITABLE, Reason.NO_SPACE})

EXIT_DONE, EXIT_REFUSED, EXIT_CHECK_FAILED, EXIT_VOLUME = 0, 3, 4, 5


class Refusal(Exception):
    """Nothing was changed (or the old state was kept); `message` says why and what to do next."""

    def __init__(self, reason: Reason, message: str, *, release: str | None = None, path: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.release = release
        self.path = path


@dataclass(frozen=True)
class Outcome:
    """The end of one run, as the termination log and `--json` show it."""

    result: str
    reason: Reason
    message: str
    release: str | None
    path: str
    generation: int
    digest: str

    @staticmethod
    def patched(message: str, *, release: str | None, path: str, digest: str) -> Outcome:
        """Say that the tree is patched and, unless the message says otherwise, proven."""
        return Outcome("Patched", Reason.PATCHED, message, release, path, GENERATION, digest)

    @staticmethod
    def shown(message: str, *, release: str | None, path: str, digest: str) -> Outcome:
        """Say what would be patched; `digest` is what the patched members would have."""
        return Outcome("Shown", Reason.SHOWN, message, release, path, GENERATION, digest)

    @staticmethod
    def undone(message: str, *, release: str | None, path: str) -> Outcome:
        """Say that no patch is there any more."""
        return Outcome("Undone", Reason.UNDONE, message, release, path, GENERATION, "")

    @staticmethod
    def refused(refusal: Refusal) -> Outcome:
        """Say why nothing was patched, or why the patched tree could not be proven."""
        result = "CheckFailed" if refusal.reason in _CHECK_REASONS else "Refused"
        return Outcome(result, refusal.reason, refusal.message, refusal.release, refusal.path, GENERATION, "")

    @property
    def exit_code(self) -> int:
        """0 done; 3 refused; 4 check failed; 5 not writable or no space."""
        if self.reason in SUCCESSES:
            return EXIT_DONE
        if self.reason in _CHECK_REASONS:
            return EXIT_CHECK_FAILED
        return EXIT_VOLUME if self.reason in _VOLUME_REASONS else EXIT_REFUSED

    def line(self, limit_bytes: int | None = None) -> str:
        """Return the JSON line; a limit shortens the message, never the JSON around it."""
        text = self._json(self.message)
        if limit_bytes is None or len(text.encode()) <= limit_bytes:
            return text
        low, high = 0, len(self.message)
        while low < high:
            middle = (low + high + 1) // 2
            fits = len(self._json(self.message[:middle] + "…").encode()) <= limit_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        return self._json(self.message[:low] + "…")

    def _json(self, message: str) -> str:
        return json.dumps(asdict(replace(self, message=message)), ensure_ascii=False)

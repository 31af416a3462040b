"""The names under which the patch is known to SGLang, to its users and on disk."""

from __future__ import annotations

from dataclasses import dataclass

from .runtime import settings

GENERATION = 2
"""Raised whenever a patched tree of an older program must not be taken for a current one."""


@dataclass(frozen=True)
class EngineField:
    """A field that the patch adds to SGLang's ServerArgs, and the flag of the same name.

    `parser` is the function of the added module that reads the flag's text; a `live` field is a key of live updates.
    """

    name: str
    kind: type[int] | type[str]
    default: int | str
    parser: str
    live: bool
    help: str

    @property
    def flag(self) -> str:
        """The flag on the server's command line."""
        return "--" + self.name.replace("_", "-")


FIELDS = (
    EngineField(
        name=settings.THRESHOLD,
        kind=int,
        default=0,
        parser="parse_threshold",
        live=True,
        help="Stop drafting when this many requests, or more, decode together; below it drafting goes on. "
        "0 = always speculate, 1 = never. Can be changed while serving through /set_internal_state.",
    ),
    EngineField(
        name=settings.PROBE_PERMILLE,
        kind=int,
        default=0,
        parser="parse_probe_permille",
        live=True,
        help="Run about this many of 1000 decode steps next to the speculation threshold in the other mode, to measure "
        "it. 0 = never. Can be changed while serving through /set_internal_state.",
    ),
    EngineField(
        name=settings.OFF_PATH,
        kind=str,
        default="auto",
        parser="parse_off_path",
        live=False,
        help="How a decode step without drafts is run: decode = as without speculation, zero-step = as a verify of one "
        "token, auto = decode where it can.",
    ),
    EngineField(
        name=settings.VERIFY_TILE,
        kind=str,
        default="default",
        parser="parse_verify_tile",
        live=False,
        help="Tile of the triton attention backend for extends of up to 16 tokens with heads of up to 128, as a verify "
        "is: 16x128 = less work for rows that aren't there, default = SGLang's own.",
    ),
)

PACKAGE = "sglang"
RUNTIME_DIRECTORY = "srt/speculative/specpatch"
RUNTIME_PARENT_MODULE = "sglang.srt.speculative"
RUNTIME_NAME = "specpatch"

MANIFEST = "specpatch-manifest.json"
STAGING = ".specpatch-staging"
RETIRED = ".specpatch-retired"
ORIGINALS = ".specpatch-originals"
LOCK = ".specpatch-lock"

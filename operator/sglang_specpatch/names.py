"""The names under which the patch is known to SGLang, to its users and on disk."""

from __future__ import annotations

GENERATION = 1
"""Raised whenever a patched tree of an older program must not be taken for a current one."""

FIELD = "speculative_disable_batch_threshold"
FLAG = "--speculative-disable-batch-threshold"
MAX_THRESHOLD = 1_000_000

PACKAGE = "sglang"
RUNTIME_DIRECTORY = "srt/speculative/specpatch"
RUNTIME_PARENT_MODULE = "sglang.srt.speculative"
RUNTIME_NAME = "specpatch"
RUNTIME_MODULE = f"{RUNTIME_PARENT_MODULE}.{RUNTIME_NAME}"

MANIFEST = "specpatch-manifest.json"
STAGING = ".specpatch-staging"
RETIRED = ".specpatch-retired"
LOCK = ".specpatch-lock"

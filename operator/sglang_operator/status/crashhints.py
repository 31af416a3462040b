"""Known last words of a server that crashed, and what to do about each.

The last line of such a log often blames the wrong thing, so the whole excerpt is searched and the first entry of
the table that fits is taken.
"""

from __future__ import annotations

import re

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"dev/shm/nccl|insufficient shared memory|/shm.*No space left",
        "Shared memory is full: raise engine.sharedMemorySize.",
    ),
    (
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|Not enough memory",
        "GPU memory is full: lower --mem-fraction-static in engine.args, or use more GPUs.",
    ),
    (
        r"gated repo|GatedRepoError|401 Client Error|403 Client Error|Access to model .* is restricted",
        "The model hub denied access: set model.tokenSecretRef to a Secret whose token may read the model.",
    ),
    (
        r"RepositoryNotFoundError|404 Client Error|is not a local folder and is not a valid model identifier",
        "The model was not found: check model.uri, model.revision and speculation.draftModel.uri.",
    ),
    (
        r"No such file or directory.*(config\.json|safetensors)|does not appear to have a file named config\.json",
        "The model's files are missing: check model.uri and the volume that holds them.",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE",
        "A port is taken: choose another engine.port, and don't use the host's network.",
    ),
    (
        r"error: (unrecognized arguments|argument |ambiguous option)",
        "The server doesn't take its flags: correct engine.args.",
    ),
    (
        r"No CUDA GPUs are available|libcuda\.so|CUDA driver version is insufficient|no NVIDIA driver",
        "The container sees no usable GPU: check the node's driver and podTemplate.runtimeClassName.",
    ),
    (
        r"NCCL (error|failure)|ncclSystemError|ncclUnhandledCudaError",
        "The GPUs could not talk to each other: check the node's GPU links, IOMMU and engine.sharedMemorySize.",
    ),
)
_COMPILED = tuple((re.compile(pattern), hint) for pattern, hint in _HINTS)


def hint_for(log: str) -> str:
    """Return the next step for a crash with this log excerpt; empty when the log is not a known one."""
    return next((hint for pattern, hint in _COMPILED if pattern.search(log)), "")

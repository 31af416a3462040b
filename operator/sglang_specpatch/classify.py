"""Name the first cause of a failed import from its log.

The last line of such a log often blames the wrong thing ("could not load common_ops"): the exception raised first,
further up, is the cause. Every exception line is read in order, and the first that is recognised decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from .result import Reason

_EXCEPTION = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception|Exit|Warning|NotFound))(?::|$)")
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml|nvcuvid)\.so")
_TORCH_SYMBOL = re.compile(r"c10|at4|_ZN2at|_ZNK2at|torch|aoti", re.IGNORECASE)
_OWN = frozenset({"sglang"})


@dataclass(frozen=True)
class Cause:
    """The first cause: a reason for the condition and a sentence with the next step."""

    reason: Reason
    sentence: str


def _library(match: re.Match[str]) -> Cause:
    name = match["name"]
    if _DRIVER.match(name):
        return _no_gpu(f"{name}, which the GPU driver brings, is not in this container")
    return Cause(
        Reason.MISSING_SYSTEM_LIBRARY,
        f"The system library {name} is missing in the image. Add the package that holds it to the image.",
    )


def _symbol(match: re.Match[str]) -> Cause | None:
    if not _TORCH_SYMBOL.search(match["symbol"]):
        return None
    return Cause(
        Reason.TORCH_ABI_MISMATCH,
        f"A compiled extension ({match['file'].strip() or 'unknown file'}) was built for another torch: undefined "
        f"symbol {match['symbol']}, torch here is {_version('torch')}. Install the builds made for this torch.",
    )


def _device(match: re.Match[str]) -> Cause:
    return _no_gpu(match.group(0).strip())


def _no_gpu(detail: str) -> Cause:
    return Cause(
        Reason.NO_GPU_VISIBLE,
        f"No GPU is visible: {detail}. Check the GPU request of the pod and the runtime class of its node.",
    )


def _name(match: re.Match[str]) -> Cause | None:
    package = match["package"].split(".")[0]
    if package in _OWN:
        return None
    return _mismatch(package, f"it has no {match['name']}")


def _module(match: re.Match[str]) -> Cause | None:
    package = match["package"].split(".")[0]
    return None if package in _OWN else _mismatch(package, f"module {match['package']} is not there")


def _transformers(match: re.Match[str]) -> Cause:
    return _mismatch("transformers", match.group(0).strip())


def _mismatch(package: str, detail: str) -> Cause:
    return Cause(
        Reason.PACKAGE_MISMATCH,
        f"The package {package} {_version(package)} does not fit this SGLang: {detail}. "
        f"Install the version of {package} that this SGLang release asks for.",
    )


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Cause | None]], ...] = (
    (re.compile(r"(?P<file>[^\s:]*): undefined symbol: (?P<symbol>\S+)"), _symbol),
    (re.compile(r"(?P<name>[\w.+-]+\.so[\w.]*): cannot open shared object file"), _library),
    (
        re.compile(
            r"No CUDA GPUs are available|Found no NVIDIA driver[^.]*|no CUDA-capable device is detected"
            r"|CUDA driver version is insufficient[^.]*|NVML Shared Library Not Found|No (?:GPU|device)s? (?:is |are )?"
            r"(?:visible|found)[^.]*"
        ),
        _device,
    ),
    (
        re.compile(r"cannot import name '(?P<name>\w+)' from (?:partially initialized module )?'(?P<package>[\w.]+)'"),
        _name,
    ),
    (re.compile(r"module '(?P<package>[\w.]+)' has no attribute '(?P<name>\w+)'"), _name),
    (re.compile(r"No module named '(?P<package>[\w.]+)'"), _module),
    (re.compile(r"'\w+' is already used by a Transformers (?:config|model)[^.]*"), _transformers),
)


def first_cause(log: str) -> Cause | None:
    """Return the cause named by the first recognised exception of the log, or None if none is recognised."""
    lines = log.splitlines()
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    for line in [*exceptions, *lines]:
        for pattern, explain in _PATTERNS:
            match = pattern.search(line)
            cause = explain(match) if match else None
            if cause is not None:
                return cause
    return None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except Exception:
        return "(version unknown)"

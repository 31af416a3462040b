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
_CUDA_SYMBOL = re.compile(r"nccl|nvJitLink|cublas|cudnn|cusparse|cufft|cusolver")
_TORCH_SYMBOL = re.compile(r"c10|at4|_ZN2at|_ZNK2at|torch|aoti", re.IGNORECASE)
_LINE_CHARACTERS = 1000
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
    file, symbol, torch = match["file"].strip() or "unknown file", match["symbol"], _version("torch")
    if _CUDA_SYMBOL.search(symbol):
        return Cause(
            Reason.PACKAGE_MISMATCH,
            f"CUDA libraries of different versions are mixed: {file} needs {symbol}, which the one loaded here lacks. "
            f"Install the nvidia packages that torch {torch} asks for.",
        )
    if _TORCH_SYMBOL.search(symbol):
        return _other_torch(f"{file}, undefined symbol {symbol}")
    return None


def _operator(match: re.Match[str]) -> Cause:
    return _other_torch(f"{match['package']}, {match.group(0).strip()}")


def _other_torch(detail: str) -> Cause:
    return Cause(
        Reason.TORCH_ABI_MISMATCH,
        f"A compiled extension was built for another torch than the {_version('torch')} here: {detail}. Install the "
        "builds made for this torch.",
    )


def _old_library(match: re.Match[str]) -> Cause:
    return Cause(
        Reason.MISSING_SYSTEM_LIBRARY,
        f"The system library {match['name']} of the image is too old: {match['by']} needs {match['version']}. Use an "
        "image with a newer distribution, or builds made for this one.",
    )


def _no_space(match: re.Match[str]) -> Cause:
    return Cause(
        Reason.NO_SPACE,
        f"SGLang found no space while it was imported: {match.group(0).strip()}. Give the volume of its caches more "
        "room.",
    )


def _denied(match: re.Match[str]) -> Cause:
    return Cause(
        Reason.SOURCE_NOT_WRITABLE,
        f"SGLang may not write while it is imported: {match.group(0).strip()}. Point HOME and the cache variables to a "
        "writable volume.",
    )


def _nameless(match: re.Match[str]) -> Cause:
    return Cause(
        Reason.IMPORT_CHECK_FAILED,
        f"User {match['uid']} has no entry in the image's passwd file, and something asks for its name. Set the "
        "environment variables USER and HOME.",
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


def _requirement(match: re.Match[str]) -> Cause:
    return _mismatch(match["package"], f"{match['wanted']} is asked for")


def _cpu_build(match: re.Match[str]) -> Cause:
    return _mismatch("torch", "it is a build without CUDA")


def _numpy(match: re.Match[str]) -> Cause:
    return _mismatch("numpy", match.group(0).strip())


def _transformers(match: re.Match[str]) -> Cause:
    return _mismatch("transformers", match.group(0).strip())


def _mismatch(package: str, detail: str) -> Cause:
    return Cause(
        Reason.PACKAGE_MISMATCH,
        f"The package {package} {_version(package)} does not fit this SGLang: {detail}. "
        f"Install the version of {package} that this SGLang release asks for.",
    )


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Cause | None]], ...] = (
    (re.compile(r"(?<![^\s:])(?P<file>[^\s:]*): undefined symbol: (?P<symbol>[^\s,]+)"), _symbol),
    (re.compile(r"operator (?P<package>\w+)::\w+ does not exist"), _operator),
    (re.compile(r"\b(?P<package>\w+) were compiled with different CUDA (?:major )?versions[^.]*"), _operator),
    (re.compile(r"(?<![\w.+-])(?P<name>[\w.+-]+\.so[\w.]*): cannot open shared object file"), _library),
    (
        re.compile(
            r"(?<![\w.+-])(?P<name>[\w.+-]+\.so[\w.]*): version [`'](?P<version>[\w.]+)' not found "
            r"\(required by (?P<by>[^)]+)\)"
        ),
        _old_library,
    ),
    (re.compile(r"\[Errno 28\][^\n]*|No space left on device[^\n]*|Disk quota exceeded[^\n]*"), _no_space),
    (
        re.compile(
            r"\[Errno (?:13|30)\][^\n]*|Could not create or locate cache dir"
            r"|cannot cache function [^:]+: no locator[^\n]*"
        ),
        _denied,
    ),
    (re.compile(r"getpwuid\(\): uid not found: (?P<uid>\d+)"), _nameless),
    (re.compile(r"Torch not compiled with CUDA enabled|PyTorch was compiled without CUDA support"), _cpu_build),
    (
        re.compile(
            r"No CUDA GPUs are available|Found no NVIDIA driver[^.]*|no CUDA-capable device is detected"
            r"|CUDA driver version is insufficient[^.]*|CUDA driver initialization failed[^.]*|CUDA unknown error[^.]*"
            r"|NVML Shared Library Not Found|No (?:supported )?accelerator \([^)]*\)[^.]*available"
            r"|No (?:CUDA )?(?:GPU|device)s? (?:is |are )?(?:visible|found)[^.]*|0 active drivers \(\[\]\)"
            r"|libcuda\.so cannot found|cuda driver can't be loaded[^.]*"
        ),
        _device,
    ),
    (
        re.compile(
            r"(?<![\w-])(?P<wanted>(?P<package>[\w-]+)[<>=!~]\S*) is required for a normal functioning of this module"
        ),
        _requirement,
    ),
    (
        re.compile(r"No package metadata was found for (?:The ')?(?P<wanted>(?P<package>[\w-]+)[^\s']*)"),
        _requirement,
    ),
    (re.compile(r"numpy\.dtype size changed[^.]*|compiled using NumPy 1\.x cannot be run in[^.]*"), _numpy),
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
    lines = [line[:_LINE_CHARACTERS] for line in log.splitlines()]
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

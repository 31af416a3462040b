"""The first cause of a failed import is named, not the last line of its log."""

from __future__ import annotations

import pytest

from sglang_specpatch.classify import first_cause
from sglang_specpatch.result import Reason

ABI = """
W1130 10:00:00 common.py:12] common_ops is being loaded for sm100
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/sgl_kernel/load_utils.py", line 51, in _load
    spec.loader.exec_module(common_ops)
ImportError: /usr/lib/sgl_kernel/sm100/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3/dist-packages/sgl_kernel/__init__.py", line 5, in <module>
ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library! Attempted sm100. Error: libnuma.so.1
"""

NUMA = """
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/sgl_kernel/load_utils.py", line 51, in _load
ImportError: libnuma.so.1: cannot open shared object file: No such file or directory

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!
ModuleNotFoundError: No module named 'common_ops'
"""

CUDA = """
Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/torch/__init__.py", line 416, in <module>
    from torch._C import *  # noqa: F403
ImportError: libcuda.so.1: cannot open shared object file: No such file or directory
"""

RENAMED = """
Traceback (most recent call last):
  File "/sglang/srt/configs/model_config.py", line 33, in <module>
    from transformers import PretrainedConfig
ImportError: cannot import name 'AutoProcessorX' from 'transformers.models.auto' (/x/auto/__init__.py)

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
RuntimeError: could not load common_ops
"""

NO_DEVICE = """
Traceback (most recent call last):
  File "/sglang/srt/utils/common.py", line 400, in get_device_capability
    torch._C._cuda_init()
RuntimeError: No CUDA GPUs are available
"""

REGISTERED = """
Traceback (most recent call last):
  File "/x/transformers/models/auto/configuration_auto.py", line 1000, in register
ValueError: 'qwen3_asr' is already used by a Transformers config, pick another name.
"""


@pytest.mark.parametrize(
    ("log", "reason", "named"),
    [
        (ABI, Reason.TORCH_ABI_MISMATCH, "_ZNK3c106SymInt6sym_neERKS0_"),
        (NUMA, Reason.MISSING_SYSTEM_LIBRARY, "libnuma.so.1"),
        (CUDA, Reason.NO_GPU_VISIBLE, "libcuda.so.1"),
        (RENAMED, Reason.PACKAGE_MISMATCH, "AutoProcessorX"),
        (NO_DEVICE, Reason.NO_GPU_VISIBLE, "No CUDA GPUs are available"),
        (REGISTERED, Reason.PACKAGE_MISMATCH, "qwen3_asr"),
        ("ModuleNotFoundError: No module named 'xgrammar.kernels'", Reason.PACKAGE_MISMATCH, "xgrammar"),
        ("AttributeError: module 'torch.library' has no attribute 'wrap'", Reason.PACKAGE_MISMATCH, "torch"),
        (
            "ImportError: /x/libtorch_cuda.so: undefined symbol: ncclCommWindowDeregister",
            Reason.PACKAGE_MISMATCH,
            "ncclCommWindowDeregister",
        ),
        (
            "ImportError: /x/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
            Reason.PACKAGE_MISMATCH,
            "needs __nvJitLinkComplete_12_4, which",
        ),
        ("RuntimeError: operator torchvision::nms does not exist", Reason.TORCH_ABI_MISMATCH, "torchvision"),
        (
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions.",
            Reason.TORCH_ABI_MISMATCH,
            "torchvision",
        ),
        (
            "ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /x/common_ops.abi3.so)",
            Reason.MISSING_SYSTEM_LIBRARY,
            "libc.so.6 of the image is too old: /x/common_ops.abi3.so needs GLIBC_2.38",
        ),
        (
            "OSError: [Errno 28] No space left on device: '/home/sglang/.triton'",
            Reason.NO_SPACE,
            "/home/sglang/.triton",
        ),
        ("OSError: [Errno 122] Disk quota exceeded", Reason.NO_SPACE, "quota"),
        (
            "OSError: [Errno 30] Read-only file system: '/root/.cache/flashinfer'",
            Reason.SOURCE_NOT_WRITABLE,
            "/root/.cache/flashinfer",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/.triton'", Reason.SOURCE_NOT_WRITABLE, "'/.triton'"),
        (
            "RuntimeError: cannot cache function 'f': no locator available for file '/x/f.py'",
            Reason.SOURCE_NOT_WRITABLE,
            "'f'",
        ),
        (
            "KeyError: 'getpwuid(): uid not found: 1000800000'",
            Reason.IMPORT_CHECK_FAILED,
            "User 1000800000 has no entry",
        ),
        ("AssertionError: Torch not compiled with CUDA enabled", Reason.PACKAGE_MISMATCH, "a build without CUDA"),
        (
            "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.",
            Reason.NO_GPU_VISIBLE,
            "platform plugin is available",
        ),
        ("RuntimeError: No supported accelerator (CUDA/XPU) available", Reason.NO_GPU_VISIBLE, "CUDA/XPU"),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", Reason.NO_GPU_VISIBLE, "0 active drivers"),
        ("AssertionError: libcuda.so cannot found!", Reason.NO_GPU_VISIBLE, "libcuda.so cannot found"),
        (
            "ImportError: tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning of this module",
            Reason.PACKAGE_MISMATCH,
            "tokenizers>=0.22.0,<=0.23.0 is asked for",
        ),
        (
            "importlib.metadata.PackageNotFoundError: No package metadata was found for flashinfer-python",
            Reason.PACKAGE_MISMATCH,
            "flashinfer-python",
        ),
        (
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header",
            Reason.PACKAGE_MISMATCH,
            "numpy",
        ),
        (
            "OSError: libpython3.12.so.1.0: cannot open shared object file",
            Reason.MISSING_SYSTEM_LIBRARY,
            "libpython3.12.so.1.0",
        ),
    ],
)
def test_recorded_logs(log: str, reason: Reason, named: str) -> None:
    cause = first_cause(log)
    assert cause is not None
    assert cause.reason is reason
    assert named in cause.sentence
    assert cause.sentence.endswith(".")


def test_a_package_mismatch_names_the_version_that_is_installed() -> None:
    cause = first_cause("ImportError: cannot import name 'never' from 'hypothesis' (/x)")
    assert cause is not None
    assert cause.sentence.startswith("The package hypothesis 6.")


@pytest.mark.parametrize(
    "log",
    [
        "",
        "AssertionError: something of SGLang's own",
        "ImportError: cannot import name 'x' from 'sglang.srt.utils' (/sglang/srt/utils/__init__.py)",
        "ModuleNotFoundError: No module named 'sglang.srt.gone'",
        "ImportError: /x/own.so: undefined symbol: _ZN5other4nameEv",
    ],
)
def test_what_is_not_recognised_is_not_guessed(log: str) -> None:
    assert first_cause(log) is None


def test_a_warning_before_the_error_does_not_decide() -> None:
    log = "pynvml: NVML Shared Library Not Found, going on without\n" + RENAMED
    cause = first_cause(log)
    assert cause is not None
    assert cause.reason is Reason.PACKAGE_MISMATCH


def test_the_longest_log_is_read_in_a_moment() -> None:
    """Patterns must not run away on what they almost match."""
    log = "\n".join(["x" * 4000 + " operator", "No module named " * 300, "[Errno 1" * 500] * 20)
    assert first_cause(log) is None

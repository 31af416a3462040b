"""Kubernetes operator for SGLang with speculative decoding that follows the load."""

from typing import Final

__version__: Final = "0.1.0"

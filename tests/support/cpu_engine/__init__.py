"""Real SGLang servers on a CPU, for tests; see `engine`."""

from cpu_engine.client import Answer, EngineFailed, Prompt, acceptance
from cpu_engine.engine import CpuEngine

__all__ = ["Answer", "CpuEngine", "EngineFailed", "Prompt", "acceptance"]

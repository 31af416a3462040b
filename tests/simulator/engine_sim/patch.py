"""The engine patch's own runtime, driven by the simulation instead of by SGLang's scheduler.

The patched tree holds a package (`srt/speculative/specpatch`) whose functions SGLang's patched files call. It imports
no torch, so the simulated server loads it from the tree that it was started with and calls the same functions at the
same moments: the decision at each step, the validation of live updates, the read-back, the counters and their
publication are the patch's own code. Only its `attach` is not called: it needs a worker, for which `_Worker` stands.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from sglang_operator.simulate.curves.curve import Mode

RUNTIME_DIRECTORY = "srt/speculative/specpatch"
_loaded = itertools.count(1)


class UpdateRefused(Exception):
    """A live update is not acceptable; the message says why."""


PatchRuntime = ModuleType
"""The imported runtime package of the patch."""


def load_runtime(directory: Path) -> PatchRuntime | None:
    """Import the patch's runtime package from its folder; None if there is no such folder.

    It is imported under a name of its own, since its place under `sglang` would bring all of SGLang with it, and a new
    one each time, since several trees may be at work in one process.
    """
    initializer = directory / "__init__.py"
    if not initializer.is_file():
        return None
    name = f"engine_sim_specpatch_{next(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, initializer, submodule_search_locations=[str(directory)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Unpatched:
    """Hooks of an engine without the patch, or whose worker can't obey it: one mode for ever, nothing counted."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def mode(self, batch_size: int) -> Mode:
        """Always the same mode."""
        return self._mode

    def launched(self, *, is_decode: bool, now_seconds: float) -> None:
        """Count nothing."""

    def decoded(self, mode: Mode, batch_size: int, tokens: int, now_seconds: float) -> None:
        """Count nothing."""

    def idle(self, now_seconds: float) -> None:
        """Count nothing."""


class Patched:
    """Hooks that call the patch's runtime.

    read_threshold, read_permille: the live values. num_steps: drafted tokens while drafting.
    off_path: as on the command line; there is no worker here that could speak against a decode step.
    collector: stands for SGLang's metrics collector (`labels`, `_counter_cls`, `_gauge_cls`), or None without metrics.
    """

    def __init__(
        self,
        runtime: PatchRuntime,
        *,
        read_threshold: Callable[[], int],
        read_permille: Callable[[], int],
        num_steps: int,
        off_path: str,
        collector: SimpleNamespace | None,
    ) -> None:
        rules = importlib.import_module(f"{runtime.__name__}.threshold")
        hooks = importlib.import_module(f"{runtime.__name__}.hooks")
        live = rules.LiveSettings(read_threshold, read_permille)
        policy = rules.ThresholdPolicy(rules.ConfiguredSteps(num_steps), live, lambda: None)
        reason = f"chosen by --speculative-off-path {off_path}" if off_path == "zero-step" else None
        self.patch: Any = hooks.SpecPatch(policy, "Decode" if reason is None else "ZeroStep", reason)
        self.patch.ensure_publisher(SimpleNamespace(current_scheduler_metrics_enabled=True), collector)

    def mode(self, batch_size: int) -> Mode:
        """What the patch decides for this batch size."""
        return Mode.ON if self.patch.policy.get_steps_for_batch(batch_size) > 0 else Mode.OFF

    def launched(self, *, is_decode: bool, now_seconds: float) -> None:
        """Tell the patch's step clock."""
        self.patch.clock.launch(is_decode, now_seconds)

    def decoded(self, mode: Mode, batch_size: int, tokens: int, now_seconds: float) -> None:
        """Let the patch count the step."""
        seconds = self.patch.clock.result(now_seconds)
        self.patch.count(now_seconds, seconds, mode is Mode.ON, batch_size, tokens)

    def idle(self, now_seconds: float) -> None:
        """Let the patch settle its sums, as on a scheduler turn without a batch."""
        self.patch.clock.idle()
        self.patch.publish(now_seconds)


class _Worker:
    """Stands in for the draft worker on which the patch keeps its state."""

    def __init__(self, hooks: Patched | None, inactive_reason: str | None) -> None:
        self.specpatch = None if hooks is None else hooks.patch
        self.specpatch_inactive_reason = inactive_reason


class PatchedControl:
    """Validation and read-back of one patched scheduler, by the patch's own functions.

    hooks: None if the patch is in the tree but not active, for `inactive_reason`.
    drafts: whether the server has a draft worker at all.
    """

    def __init__(
        self, runtime: PatchRuntime, *, hooks: Patched | None, drafts: bool, inactive_reason: str | None
    ) -> None:
        self._runtime = runtime
        self._scheduler = SimpleNamespace(draft_worker=_Worker(hooks, inactive_reason) if drafts else None)

    def request_problem(self, updates: dict[str, Any]) -> str | None:
        """Why the HTTP layer answers a live update with 400, in the patch's words, or None."""
        problem = importlib.import_module(f"{self._runtime.__name__}.settings").update_refusal(updates)
        return None if problem is None else f"Live update refused: {problem}"

    def check(self, key: str, value: object) -> None:
        """Raises UpdateRefused with the patch's sentence."""
        self._runtime.update_check(self._scheduler, UpdateRefused)(key, value)

    def add_readback(self, state: dict[str, Any]) -> None:
        """Add what the patch adds to the internal state of a scheduler."""
        self._runtime.add_readback(self._scheduler, state)

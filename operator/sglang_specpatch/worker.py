"""Recognise a worker whose drafting can be switched off step by step.

The patch drives SGLang's own zero-step state: `AdaptiveController` swaps the worker to a state built for zero
draft steps and back. The few functions that this depends on are compared with the code that was read and tested;
they are equal in every release from 0.5.14 on, so a difference means an edited or unknown worker.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from .anchors import (
    AnchorMissing,
    class_named,
    is_name,
    is_self_attribute,
    method_named,
    only,
    same_function,
    statement_where,
)
from .edit import SourceFile
from .result import Reason, Refusal

WORKER = "srt/speculative/eagle_worker_v2.py"
CONTROLLER = "srt/speculative/adaptive_runtime_state.py"
CHOICE = "srt/speculative/spec_info.py"
PARAMS = "srt/speculative/adaptive_spec_params.py"
OLD_WORKER = "srt/speculative/eagle_worker.py"

_WORKER_METHODS = {
    "activate_step_by_batch": """
def activate_step_by_batch(self, batch_size):
    if self.adaptive_controller is not None:
        self.adaptive_controller.activate_step_by_batch(batch_size)
""",
    "on_verify_complete_cpu": """
def on_verify_complete_cpu(self, num_correct_drafts_per_req, batch_size=0):
    if self.adaptive_controller is not None:
        self.adaptive_controller.on_verify_complete(num_correct_drafts_per_req, batch_size=batch_size)
""",
}
_CONTROLLER_METHODS = {
    "register": """
def register(self, state, steps=None):
    key = steps if steps is not None else state.speculative_num_steps
    self._states[key] = state
""",
    "init_states": """
def init_states(self, cuda_graph_bs=None):
    self.params.set_cuda_graph_bs(cuda_graph_bs)
    for steps in self.candidate_steps:
        if steps in self._states:
            continue
        pruned_bs = self.params.cuda_graph_bs_for_step(steps)
        state = self.worker.build_adaptive_runtime_state(
            speculative_num_steps=steps,
            speculative_num_draft_tokens=steps + 1,
            cuda_graph_bs=pruned_bs,
        )
        self._states[steps] = state
    self._activate(self.worker.speculative_num_steps)
""",
    "activate_step_by_batch": """
def activate_step_by_batch(self, batch_size):
    target = self.params.get_steps_for_batch(batch_size)
    if target != self.worker.speculative_num_steps:
        self._activate(target)
""",
    "on_verify_complete": """
def on_verify_complete(self, num_correct_drafts_per_req, batch_size):
    new_step = self.params.on_verify_complete(num_correct_drafts_per_req, batch_size)
    if new_step is not None:
        self._activate(new_step)
""",
    "_activate": """
def _activate(self, speculative_num_steps):
    state = self._states.get(speculative_num_steps)
    if state is None:
        raise ValueError(f"Missing adaptive runtime state for steps={speculative_num_steps}")
    self.worker.apply_runtime_state(state)
""",
}


_SIGNS = {
    PARAMS: ("s >= 0",),
    WORKER: ("self.speculative_num_steps == 0", "self._build_trivial_verify_input"),
}
"""Expressions that come with the zero-step state: with any of them in the tree, the whole of it must be there."""


def has_zero_step_state(read: Callable[[str], bytes | None]) -> bool:
    """Tell whether the EAGLE worker's drafting can be switched off; then worker, controller and choice are as known.

    Raises Refusal(UnsupportedWorker) when the tree has no EAGLE v2 worker, and AnchorMissing, AnchorAmbiguous or
    EditRefused when the worker shows signs of a zero-step state but does not look as expected.
    """
    data = read(WORKER)
    if data is None or b"class EAGLEWorkerV2" not in data:
        version_one = read(OLD_WORKER) is not None
        raise Refusal(
            Reason.UNSUPPORTED_WORKER,
            f"{OLD_WORKER if version_one else WORKER}: "
            + ("only the EAGLE v1 worker is here; its batches" if version_one else "no EAGLE v2 worker; batches")
            + " are tied to the draft token count, so drafting can't be switched off step by step. "
            "Use SGLang 0.5.14 or newer, or serve without speculation.",
        )
    if not any(_shows(path, read(path), signs) for path, signs in _SIGNS.items()):
        return False
    _require_zero_steps(SourceFile(WORKER, data), read)
    return True


def controller_setup(source: SourceFile, worker: ast.ClassDef) -> tuple[list[ast.stmt], ast.stmt]:
    """Return the body of the worker's `__init__`, and the statement in it that sets up the adaptive controller."""
    body = method_named(source, worker, "__init__").body
    return body, statement_where(body, _builds_controller, f"{WORKER}: EAGLEWorkerV2.__init__ adaptive controller")


def _builds_controller(statement: ast.stmt) -> bool:
    """Match `if <adaptive>: self.adaptive_controller = AdaptiveController(...)`."""
    return isinstance(statement, ast.If) and any(
        isinstance(inner, ast.Assign)
        and is_self_attribute(inner.targets[0], "adaptive_controller")
        and isinstance(inner.value, ast.Call)
        and is_name(inner.value.func, "AdaptiveController")
        for inner in statement.body
    )


def _shows(path: str, data: bytes | None, signs: tuple[str, ...]) -> bool:
    if data is None:
        return False
    expressions = (
        node for node in ast.walk(SourceFile(path, data).tree) if isinstance(node, ast.Compare | ast.Attribute)
    )
    return any(ast.unparse(node) in signs for node in expressions)


def _require_zero_steps(source: SourceFile, read: Callable[[str], bytes | None]) -> None:
    worker = class_named(source, "EAGLEWorkerV2")
    _require_same(source, worker, _WORKER_METHODS)
    _require_decode_branch(method_named(source, worker, "forward_batch_generation"))
    for name in ("build_adaptive_runtime_state", "apply_runtime_state", "_build_trivial_verify_input"):
        method_named(source, worker, name)
    controller = read(CONTROLLER)
    if controller is None:
        raise AnchorMissing(f"{CONTROLLER}: no such file")
    switching = SourceFile(CONTROLLER, controller)
    _require_same(switching, class_named(switching, "AdaptiveController"), _CONTROLLER_METHODS)
    _require_choice(read(CHOICE))


def _require_same(source: SourceFile, owner: ast.ClassDef, expected: dict[str, str]) -> None:
    for name, code in expected.items():
        if not same_function(method_named(source, owner, name), code):
            raise AnchorMissing(f"{source.path}: {owner.name}.{name} with the known code (it was edited)")


def _require_decode_branch(forward: ast.FunctionDef) -> None:
    """The step count must be chosen from the batch, and zero steps must skip drafting."""
    anchor = f"{WORKER}: EAGLEWorkerV2.forward_batch_generation"
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call)]
    chosen = only(
        (call for call in calls if is_self_attribute(call.func, "activate_step_by_batch")),
        f"{anchor} self.activate_step_by_batch(…)",
    )
    if [ast.unparse(argument) for argument in chosen.args] != ["batch.seq_lens.shape[0]"]:
        raise AnchorMissing(f"{anchor} self.activate_step_by_batch(batch.seq_lens.shape[0])")
    skips = (
        node
        for node in ast.walk(forward)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "self.speculative_num_steps == 0"
        and "self._build_trivial_verify_input(batch)" in ast.unparse(node.body[-1])
    )
    only(skips, f"{anchor} if self.speculative_num_steps == 0: …_build_trivial_verify_input(batch)")


def _require_choice(data: bytes | None) -> None:
    """SpeculativeAlgorithm.create_worker must hand out the worker that is patched."""
    anchor = f"{CHOICE}: SpeculativeAlgorithm.create_worker returning EAGLEWorkerV2 of {WORKER}"
    if data is None:
        raise AnchorMissing(anchor)
    source = SourceFile(CHOICE, data)
    create = method_named(source, class_named(source, "SpeculativeAlgorithm"), "create_worker")
    imports = [
        node
        for node in ast.walk(create)
        if isinstance(node, ast.ImportFrom)
        and node.module == "sglang.srt.speculative.eagle_worker_v2"
        and [alias.name for alias in node.names] == ["EAGLEWorkerV2"]
    ]
    only(imports, anchor)

"""The hooks of the decode off path go in together, or the reason goes in instead."""

from __future__ import annotations

import ast

import pytest

from sglang_specpatch.edits import Edits
from sglang_specpatch.offpath import RELAY, hook_off_path
from sglang_specpatch.worker import WORKER

WORKER_SOURCE = """
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
from sglang.srt.speculative.eagle_utils import (
    _eagle_prefill_tail_tokens,
    default_tree_mask_mode,
)


class EagleDraftWorker:
    def _draft_extend_for_prefill(self, batch, target_hidden_states, next_token_ids, mm_input_embeds=None):
        return self.draft_runner.forward(batch)


class EAGLEWorkerV2:
    def __init__(self, server_args):
        if server_args.speculative_adaptive:
            self.adaptive_controller = AdaptiveController(self)

    @property
    def last_shared_read_runner(self):
        return self._draft_worker.draft_runner

    def init_cuda_graphs(self):
        if self.adaptive_controller is not None:
            self.adaptive_controller.init_states()

    def forward_batch_generation(self, batch, on_publish=None, grammar_barrier=None):
        if batch.forward_mode.is_extend():
            return self.prefill(batch)
        else:
            self.activate_step_by_batch(batch.seq_lens.shape[0])
            if batch.spec_info.is_verify_input():
                verify_input = batch.spec_info
            elif self.speculative_num_steps == 0:
                verify_input = self._build_trivial_verify_input(batch)
            else:
                verify_input = self.draft_worker.draft(batch)
            return self.verify(batch)

    def build_adaptive_runtime_state(self, speculative_num_steps, speculative_num_draft_tokens):
        TargetGraphRunnerCls = None
        if graphs:
            TargetGraphRunnerCls = DecodeCudaGraphRunner
            runner = TargetGraphRunnerCls(self)
"""

RELAY_SOURCE = """
from sglang.srt.environ import envs


class FutureMap:
    def resolve_seq_lens_cpu(self, batch):
        batch.seq_lens = self.new_seq_lens_buf[batch.spec_info.future_indices]
        if self.fwd_prepare_d2h_stream is None or self.publish_ready is None:
            batch.seq_lens_cpu = batch.seq_lens.cpu()

    def stash(self, future_indices, payload):
        self.output_tokens_buf[future_indices] = payload.bonus_tokens
        if self.need_topk:
            self.topk_p_buf[future_indices] = payload.topk_p
"""


def patched(worker: str = WORKER_SOURCE, relay: str = RELAY_SOURCE) -> tuple[str | None, dict[str, str]]:
    """Return the reason, and the edited files by their path."""
    files = {WORKER: worker.encode(), RELAY: relay.encode()}
    edits = Edits(files.get)
    reason = hook_off_path(edits, Edits(files.get))
    return reason, {member.path: member.after.decode() for member in edits.members()}


def body(source: str, owner: str, function: str) -> list[str]:
    """Return the statements of a method, each on one line."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == owner]
    methods = [node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == function]
    return [" ".join(ast.unparse(statement).split()) for statement in methods[0].body]


def test_every_hook_stands_where_it_works() -> None:
    reason, files = patched()
    assert reason is None
    worker = files[WORKER]
    assert body(worker, "EAGLEWorkerV2", "__init__")[-1] == "specpatch.attach_off_path(self)"
    assert body(worker, "EAGLEWorkerV2", "init_cuda_graphs")[-1] == "specpatch.off_path_ready(self)"
    reader = body(worker, "EAGLEWorkerV2", "last_shared_read_runner")
    assert reader[0] == "if specpatch.target_reads_last(self): return self._target_worker.model_runner"
    forward, decode = body(worker, "EAGLEWorkerV2", "forward_batch_generation")
    assert forward == "specpatch.off_path_forward(self, batch)"
    step = (
        "if (specpatch_output := specpatch.off_path_step(self, batch, on_publish, grammar_barrier)) is not None: "
        "return specpatch_output"
    )
    assert f"self.activate_step_by_batch(batch.seq_lens.shape[0]) {step} if batch.spec_info" in decode
    graphs = body(worker, "EAGLEWorkerV2", "build_adaptive_runtime_state")[1]
    assert "TargetGraphRunnerCls = DecodeCudaGraphRunner TargetGraphRunnerCls = specpatch.off_path_graphs(" in graphs
    prefill = body(worker, "EagleDraftWorker", "_draft_extend_for_prefill")[0]
    arguments = "batch, target_hidden_states, next_token_ids, mm_input_embeds, _eagle_prefill_tail_tokens"
    call = f"specpatch_output := specpatch.off_path_prefill(self, {arguments})"
    assert prefill == f"if ({call}) is not None: return specpatch_output"
    relay = files[RELAY]
    assert body(relay, "FutureMap", "resolve_seq_lens_cpu")[1] == "if specpatch.lengths_on_host(batch): return"
    assert body(relay, "FutureMap", "stash")[1] == "if specpatch.relays_bonus_only(payload): return"


def test_a_relay_that_takes_less_by_itself_is_left_alone() -> None:
    newer = RELAY_SOURCE.replace("if self.need_topk:", "if self.need_topk and payload.topk_p is not None:")
    reason, files = patched(relay=newer)
    assert reason is None
    assert "relays_bonus_only" not in files[RELAY]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "TargetGraphRunnerCls = DecodeCudaGraphRunner",
            "runner_class = DecodeCudaGraphRunner",
            "TargetGraphRunnerCls",
        ),
        ("last_shared_read_runner", "reader", "last_shared_read_runner"),
        ("self._build_trivial_verify_input(batch)", "None", "_build_trivial_verify_input"),
        ("on_publish=None, ", "", "on_publish"),
        ("next_token_ids, mm_input_embeds=None", "next_token_ids", "_draft_extend_for_prefill"),
        ("    _eagle_prefill_tail_tokens,\n", "", "_eagle_prefill_tail_tokens"),
    ],
)
def test_one_missing_place_leaves_the_reason_alone(old: str, new: str, named: str) -> None:
    reason, files = patched(worker=WORKER_SOURCE.replace(old, new))
    assert reason is not None
    assert named in reason
    assert list(files) == [WORKER]
    assert files[WORKER].count("specpatch.") == 1
    assert body(files[WORKER], "EAGLEWorkerV2", "__init__")[-1] == f"specpatch.attach_off_path(self, {reason!r})"


def test_a_relay_of_another_shape_leaves_the_reason_alone() -> None:
    reason, files = patched(relay=RELAY_SOURCE.replace("fwd_prepare_d2h_stream", "copies"))
    assert reason is not None
    assert "resolve_seq_lens_cpu" in reason
    assert list(files) == [WORKER]

"""Drive the patched classes of a real SGLang: its EAGLE worker, its controller, its scheduler's own functions.

Run by the engine tests in an interpreter that can import SGLang; prints one JSON object of observations. The only
stand-ins are what needs a GPU or a model: the draft worker, the states that would hold CUDA graphs, and the requests.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

FIELD = "speculative_disable_batch_threshold"
PROBE = "speculative_probe_permille"
STEPS = 3


def load(name: str) -> Any:
    return importlib.import_module(f"sglang.srt.{name}")


def publish(**changes: object) -> Any:
    """Make config of a server the config of this process, as a scheduler process does at its start."""
    server_args = load("server_args")
    fields = {
        "model_path": "dummy",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": STEPS,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": STEPS + 1,
        FIELD: 4,
        "speculative_off_path": "zero-step",
        **changes,
    }
    args = server_args.ServerArgs(**fields)
    server_args.set_global_server_args_for_scheduler(args)
    return args


@contextlib.contextmanager
def replaced(module: ModuleType, **names: object) -> Iterator[None]:
    """Replace names of a module that exist there."""
    saved = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update({name: names[name] for name in saved})
    try:
        yield
    finally:
        vars(module).update(saved)


def make_worker(args: Any) -> Any:
    """Run the real, patched `EAGLEWorkerV2.__init__` with a stand-in for the draft model."""
    module = load("speculative.eagle_worker_v2")
    runner = SimpleNamespace(draft_attn_backend=None, attn_backend=None, model_config=SimpleNamespace(hf_config=None))
    draft = SimpleNamespace(
        draft_runner=runner,
        speculative_num_steps=STEPS,
        speculative_num_draft_tokens=STEPS + 1,
        draft_attn_backend="draft",
        cuda_graph_runner=None,
        draft_extend_attn_backend=None,
        cuda_graph_runner_for_draft_extend=None,
        rebuilt=0,
    )

    def rebuild() -> None:
        draft.rebuilt += 1

    draft._rebuild_topk1_chain_buffers = rebuild
    here = SimpleNamespace(is_last_rank=True)
    target = SimpleNamespace(
        model_runner=SimpleNamespace(
            attn_backend="target",
            decode_cuda_graph_runner=None,
            model_config=SimpleNamespace(context_len=4096),
        ),
        get_memory_pool=lambda: (None, None),
        model_config=None,
    )
    with replaced(
        module,
        EagleDraftWorker=lambda *_, **__: draft,
        get_plan_stream=lambda *_: (None, contextlib.nullcontext()),
        _get_plan_stream=lambda *_: (None, contextlib.nullcontext()),
        get_pp_group=lambda: here,
        get_parallel=lambda: SimpleNamespace(pp_group=here, pp_size=1),
        get_device=lambda: SimpleNamespace(device="cpu"),
        get_schedule=lambda: SimpleNamespace(page_size=1),
    ):
        names = [name for name in inspect.signature(module.EAGLEWorkerV2.__init__).parameters if name != "self"]
        given = {"server_args": args, "target_worker": target}
        return module.EAGLEWorkerV2(**{name: given.get(name, 0) for name in names if name not in ("kwargs", "args")})


def prepare_states(worker: Any) -> list[int]:
    """Let the real controller build its states; returns the step counts it asked for."""
    state = load("speculative.adaptive_runtime_state").SpecRuntimeState
    built: list[int] = []

    def build(speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: object = None) -> Any:
        built.append(speculative_num_steps)
        return made(speculative_num_steps, speculative_num_draft_tokens)

    def made(steps: int, draft_tokens: int) -> Any:
        return state(
            speculative_num_steps=steps,
            speculative_num_draft_tokens=draft_tokens,
            draft_attn_backend=f"draft {steps}",
            cuda_graph_runner=None,
            target_attn_backend=f"target {steps}",
            target_graph_runner=None,
            draft_extend_attn_backend=None,
            cuda_graph_runner_for_draft_extend=None,
        )

    worker.build_adaptive_runtime_state = build
    worker.adaptive_controller.register(made(STEPS, STEPS + 1))
    worker.adaptive_controller.init_states(cuda_graph_bs=[1, 2, 4])
    return built


def decide(worker: Any, batch_size: int) -> int:
    """Take one decode step's decision through the worker's own method; returns the draft steps in force after it."""
    worker.activate_step_by_batch(batch_size)
    return int(worker.speculative_num_steps)


def make_scheduler(worker: Any) -> Any:
    """A scheduler as far as its live updates and its read-back need one."""
    return SimpleNamespace(
        draft_worker=worker,
        max_running_requests=64,
        ps=SimpleNamespace(pp_size=1),
        spec_algorithm=SimpleNamespace(is_none=lambda: False, is_dspark=lambda: False, is_dflash=lambda: False),
        metrics_reporter=SimpleNamespace(spec_total_num_forward_ct=0, spec_total_num_accept_tokens=0),
    )


def updater(scheduler: Any) -> Callable[[dict[str, object]], object]:
    """Return the real handler of `/set_internal_state` in the scheduler process."""
    request = load("managers.io_struct").SetInternalStateReq
    try:
        controller = load("managers.scheduler_components.internal_state").SchedulerInternalStateController
    except ModuleNotFoundError:
        module = load("managers.scheduler")
        parallel = lambda: SimpleNamespace(pp_size=1)  # noqa: E731

        def old(updates: dict[str, object]) -> object:
            with replaced(module, get_parallel=parallel):
                return module.Scheduler.set_internal_state(scheduler, request(server_args=updates)).updated

        return old
    module = load("managers.scheduler_components.internal_state")

    def new(updates: dict[str, object]) -> object:
        with replaced(module, get_parallel=lambda: SimpleNamespace(pp_size=1)):
            return controller(scheduler, False).set_internal_state(request(server_args=updates)).updated

    return new


def probes(worker: Any, scheduler: Any, update: Callable[[dict[str, object]], object]) -> dict[str, Any]:
    """Set both settings in one live update, take decode steps, and time the decision with the real config under it."""
    update({FIELD: 33, PROBE: 500})
    state = read_back(scheduler)
    steps = [decide(worker, 8) for _ in range(40)]
    began, rounds = time.thread_time(), 20_000
    for _ in range(rounds):
        worker.adaptive_controller.params.get_steps_for_batch(8)
    spent = time.thread_time() - began
    update({PROBE: 0})
    return {
        "read back": [state[FIELD], state[PROBE]],
        "steps": steps,
        "after": [decide(worker, 8) for _ in range(40)],
        "microseconds": spent / rounds * 1e6,
    }


def count_steps(worker: Any) -> dict[str, Any]:
    """Play decode steps through the real result processor; returns the sums the patch kept."""
    torch = importlib.import_module("torch")
    results = load("managers.scheduler_components.batch_result_processor")
    result_class = load("managers.utils").GenerationBatchResult
    hooks = load("speculative.specpatch.hooks")
    processor = SimpleNamespace(
        model_worker=worker,
        metrics_reporter=SimpleNamespace(
            current_scheduler_metrics_enabled=False, snapshot_spec_decode_metrics=lambda *_: None
        ),
        metrics_collector=None,
        advance_grammar_fsm=lambda *_: None,
    )
    requests = [make_request(number) for number in range(2)]
    batch = SimpleNamespace(
        reqs=requests,
        spec_algorithm=SimpleNamespace(is_dflash=lambda: False),
        forward_mode=SimpleNamespace(is_extend=lambda: False),
        is_extend_in_batch=False,
    )
    worker.specpatch.publish = lambda now: None
    seen: dict[str, list[Any]] = {}
    for accepted in ([2, 1], [4, 3], [1, 1]):
        hooks.note_forward(worker, batch)
        time.sleep(0.002)
        outcome = result_class(
            next_token_ids=torch.arange(8), accept_lens=torch.tensor(accepted), speculative_num_draft_tokens=STEPS + 1
        )
        results.SchedulerBatchResultProcessor._resolve_spec_v2_tokens(processor, outcome, batch)
    for (mode, bucket), sums in worker.specpatch.sums.take().items():
        seen[f"{mode} {bucket}"] = [sums.steps, sums.tokens, 0.003 < sums.seconds < 5]
    return seen


def make_request(number: int) -> Any:
    request = SimpleNamespace(
        rid=str(number), is_retracted=False, finished_reason=None, grammar=None, spec_verify_ct=0,
        spec_num_correct_drafts=0, kv_committed_len=0, kv=SimpleNamespace(kv_committed_len=0),
        update_spec_correct_drafts_histogram=lambda _: None,
    )  # fmt: skip
    request.finished = lambda: request.finished_reason is not None
    return request


def read_back(scheduler: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    load("speculative.specpatch").add_readback(scheduler, state)
    return state


def main() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    args = publish()
    worker = make_worker(args)
    seen["built"] = prepare_states(worker)
    seen["boundaries at 4"] = [decide(worker, size) for size in (1, 3, 4, 5, 3)]
    seen["state after 5"] = (decide(worker, 5), worker._target_worker.model_runner.attn_backend)
    scheduler = make_scheduler(worker)
    update = updater(scheduler)
    decisions: dict[str, list[int]] = {}
    for value in (0, 1, 3, 1_000_000):
        update({FIELD: value})
        decisions[str(value)] = [decide(worker, size) for size in (1, 2, 3, 4, 100)]
        decisions[f"{value} read back"] = [read_back(scheduler)[FIELD]]
    seen["live"] = decisions
    seen["refused"] = {}
    bad_updates: tuple[dict[str, object], ...] = (
        {FIELD: -1}, {FIELD: 1_000_001}, {FIELD: 8.0}, {FIELD: "8"}, {FIELD: True}, {FIELD: None},
        {FIELD: 8, "no_such_key": 1}, {"no_such_key": 1, FIELD: 8}, {"pp_max_micro_batch_size": 0, FIELD: 8},
        {"pp_max_micro_batch_size": 1, FIELD: -1},
        {PROBE: -1}, {PROBE: 501}, {PROBE: 30.0}, {PROBE: "30"}, {PROBE: True}, {PROBE: None},
        {FIELD: 8, PROBE: 501}, {PROBE: 501, FIELD: 8}, {FIELD: -1, PROBE: 30}, {PROBE: 30, FIELD: -1},
        {FIELD: 8, PROBE: 30, "no_such_key": 1}, {"speculative_off_path": "decode", FIELD: 8},
    )  # fmt: skip
    for updates in bad_updates:
        answer = update(updates)
        state = read_back(scheduler)
        seen["refused"][json.dumps(updates)] = [answer, state[FIELD], state[PROBE]]
    seen["probes"] = probes(worker, scheduler, update)
    seen["read back"] = read_back(scheduler)["specpatch"]
    update({FIELD: 2})
    for number in range(600):
        decide(worker, 1 + number % 2)
    context = load("runtime_context").get_context()
    logs: list[Any] = [getattr(context, "_overrides_log", None), getattr(args, "_runtime_mutations", None)]
    seen["override log"] = max(len(log or []) for log in logs)
    update({FIELD: 0})
    decide(worker, 1)
    seen["counted"] = count_steps(worker)
    seen["own adaptive"] = with_own_adaptive()
    seen["inactive"] = inactive_cases()
    return seen


def with_own_adaptive() -> dict[str, Any]:
    """A user's `--speculative-adaptive`: SGLang's policy below the threshold, zero steps from it on."""
    worker = make_worker(publish(speculative_adaptive=True))
    prepare_states(worker)
    below = decide(worker, 1)
    return {
        "candidates": worker.adaptive_controller.candidate_steps,
        "below": below,
        "at": decide(worker, 4),
        "below again": decide(worker, 1) == below,
    }


def inactive_cases() -> dict[str, Any]:
    """Configurations that can't obey: nothing is attached, and the reason is told."""
    seen = {}
    cases: dict[str, dict[str, Any]] = {
        "topk": {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8},
        "pipeline": {"pp_size": 2},
        "lora": {"enable_lora": True},
    }
    for name, changes in cases.items():
        worker = make_worker(publish(**changes))
        seen[name] = [worker.adaptive_controller is None, read_back(make_scheduler(worker))["specpatch"]]
    seen["no speculation"] = [True, read_back(SimpleNamespace(draft_worker=None))["specpatch"]]
    return seen


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print("\n" + json.dumps(main()), file=sys.stdout)

"""A small package laid out like SGLang: every place the patch hooks, and nothing that needs torch.

Its server arguments parse and its live-update handler works, so that the import check can run on it in a second.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

ARG_UTILS = '''
"""Fields that declare their own flags."""
import dataclasses
from typing import Annotated, get_type_hints

A = Annotated


@dataclasses.dataclass(frozen=True)
class Arg:
    help: str = ""
    type_parser: object = None


@dataclasses.dataclass(frozen=True)
class NS:
    path: str


def add_cli_args_from_dataclass(parser, cls):
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind, *marks = hints[field.name].__origin__, *hints[field.name].__metadata__
        arg = next((mark for mark in marks if isinstance(mark, Arg)), Arg(help=str(marks[0])))
        flag = "--" + field.name.replace("_", "-")
        default = None if field.default is dataclasses.MISSING else field.default
        if kind is bool:
            parser.add_argument(flag, action="store_true", help=arg.help)
        else:
            parser.add_argument(flag, type=arg.type_parser or kind, default=default, help=arg.help)
'''

SERVER_ARGS = '''
"""Server arguments; speculative_num_draft_tokens is declared below (not here)."""
from __future__ import annotations

import dataclasses

from sglang.srt.arg_groups.arg_utils import A, Arg, NS, add_cli_args_from_dataclass

# speculative_num_draft_tokens: A[int, "only a comment"] = 0


@dataclasses.dataclass
class ServerArgs:
    model_path: A[str, "The model."] = ""
    speculative_adaptive: A[
        bool,
        "Adapt, see speculative_num_draft_tokens: A[int] = None (in brackets, too).",
        NS("spec"),
    ] = False
    speculative_num_draft_tokens: A[
        int,
        Arg(
            help="How many (with [lists] and parentheses).",
        ),
        NS("spec"),
    ] = 4
    port: A[int, "The port."] = 30000

    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
'''

FIELDS_SPEC = '''
"""Fields of the spec namespace."""
from __future__ import annotations

from sglang.srt.arg_groups.arg_utils import A, Arg


class Spec:
    speculative_num_draft_tokens: A[
        int,
        "How many.",
    ] = 4
'''

SERVER_ARGS_OF_FIELDS = '''
"""Server arguments collected from the fields of a namespace."""
import dataclasses

from sglang.srt.arg_groups.arg_utils import A, add_cli_args_from_dataclass
from sglang.srt.arg_groups.fields import spec


@dataclasses.dataclass
class ServerArgs(dataclasses.make_dataclass(
    "Fields", [(name, kind, getattr(spec.Spec, name)) for name, kind in
               __import__("typing").get_type_hints(spec.Spec, include_extras=True).items()])):
    model_path: A[str, "The model."] = ""

    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
'''

PLAIN_SERVER_ARGS = '''
"""Server arguments; parser.add_argument("--speculative-num-draft-tokens") is below (not here)."""
from __future__ import annotations

import argparse
import dataclasses

from sglang.srt.arg_groups.arg_utils import Arg


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    # speculative_num_draft_tokens: int = 0
    speculative_num_steps: int = 3
    speculative_num_draft_tokens: int = 4
    port: int = 30000

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        """Add the flags, "--speculative-num-draft-tokens" among them."""
        parser.add_argument("--model-path", type=str, help="(model")
        parser.add_argument(
            "--speculative-num-steps",
            type=int,
            help="Steps, see \\"--speculative-num-draft-tokens\\" [here]",
            default=ServerArgs.speculative_num_steps,
        )
        parser.add_argument(
            "--speculative-num-draft-tokens",
            "--draft-tokens",
            type=int,
            help="How many (with [lists] and {braces}).",
            default=ServerArgs.speculative_num_draft_tokens,
        )
        parser.add_argument("--port", type=int, default=ServerArgs.port)
'''

WORKER = '''
"""The EAGLE worker; class EAGLEWorkerV2 is below."""
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController


class EagleDraftWorker:
    def forward_batch_generation(self, batch):
        return self.draft(batch)


class EAGLEWorkerV2:
    def __init__(self, server_args, gpu_id, nccl_port, target_worker):
        self.server_args = server_args
        self.speculative_num_steps = 3

        # Adaptive speculative
        self.adaptive_controller = None
        if server_args.speculative_adaptive:
            self.adaptive_controller = AdaptiveController(
                self,
                config_path=server_args.speculative_adaptive_config,
            )

        self.done = True

    def forward_batch_generation(
        self,
        batch,
        on_publish=None,
        grammar_barrier=None,
    ):
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return "prefill"
        else:
            self.activate_step_by_batch(batch.seq_lens.shape[0])
            if self.speculative_num_steps == 0:
                verify_input = self._build_trivial_verify_input(batch)
            else:
                verify_input = self.draft_worker.draft(batch)
            return verify_input

    def _build_trivial_verify_input(self, batch):
        return batch

    def on_verify_complete_cpu(self, num_correct_drafts_per_req, batch_size=0):
        if self.adaptive_controller is not None:
            self.adaptive_controller.on_verify_complete(
                num_correct_drafts_per_req, batch_size=batch_size
            )

    def activate_step_by_batch(self, batch_size):
        """Choose the steps."""
        if self.adaptive_controller is not None:
            self.adaptive_controller.activate_step_by_batch(batch_size)

    def build_adaptive_runtime_state(self, speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs=None):
        return None

    def apply_runtime_state(self, state):
        self.speculative_num_steps = state
'''

CONTROLLER = '''
"""Swaps states."""


class AdaptiveController:
    def __init__(self, worker, policy):
        self.worker = worker
        self.params = policy
        self._states = {}

    @property
    def candidate_steps(self):
        return self.params.candidate_steps

    def register(self, state, steps=None):
        key = steps if steps is not None else state.speculative_num_steps
        self._states[key] = state

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

        # Start on the initial step.
        self._activate(self.worker.speculative_num_steps)

    def activate_step_by_batch(self, batch_size):
        target = self.params.get_steps_for_batch(batch_size)
        if target != self.worker.speculative_num_steps:
            self._activate(target)

    def on_verify_complete(self, num_correct_drafts_per_req, batch_size):
        """Feed."""
        new_step = self.params.on_verify_complete(
            num_correct_drafts_per_req, batch_size
        )
        if new_step is not None:
            self._activate(new_step)

    def _activate(self, speculative_num_steps):
        state = self._states.get(speculative_num_steps)
        if state is None:
            raise ValueError(
                f"Missing adaptive runtime state for steps={speculative_num_steps}"
            )
        self.worker.apply_runtime_state(state)
'''

PARAMS = '''
"""Candidate steps."""


def check(steps):
    return all(isinstance(s, int) and s >= 0 for s in steps)
'''

WORKER_THAT_ALWAYS_DRAFTS = '''
"""The EAGLE worker before it had a state for zero steps."""


class EAGLEWorkerV2:
    def __init__(self, server_args, gpu_id, nccl_port, target_worker):
        self.server_args = server_args
        self.speculative_num_steps = 3

    def forward_batch_generation(self, batch):
        return self.draft_worker.draft(batch)
'''

SPEC_INFO = '''
"""Algorithms."""


class SpeculativeAlgorithm:
    def create_worker(self, server_args):
        if self.is_eagle():
            from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

            return EAGLEWorkerV2
        raise ValueError("Unreachable code path in create_worker.")
'''

RESULTS = '''
"""Results."""
from dataclasses import dataclass

from sglang.srt.server_args import ServerArgs


@dataclass
class SchedulerBatchResultProcessor:
    model_worker: object

    def _resolve_spec_v2_tokens(
        self,
        result,
        batch,
    ):
        predict_tokens = []
        for tokens in result.tokens:
            predict_tokens.append(tokens)

        return predict_tokens
'''

SCHEDULER = '''
"""The scheduler."""
import logging

from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


class Scheduler:
    def get_internal_state(self, recv_req):
        ret = dict(vars(get_global_server_args()))
        ret["more"] = 1
        return GetInternalStateReqOutput(internal_state=ret)

    def set_internal_state(self, recv_req):
        server_args_dict = recv_req.server_args
        args_allow_update = set(
            [
                "pp_max_micro_batch_size",  # the first
                "speculative_accept_threshold_single",
            ]
        )

        if_success = True
        for k, v in server_args_dict.items():
            if k not in args_allow_update:
                logging.warning(f"Updating {k} is not supported.")
                if_success = False
                break
            elif k == "pp_max_micro_batch_size" and v < 1:
                if_success = False
                break

        if if_success:
            for k, v in server_args_dict.items():
                setattr(get_global_server_args(), k, v)
        return SetInternalStateReqOutput(updated=if_success)

    def on_idle(self):
        """Idle housekeeping."""
        # First this.
        self.check()
'''

SCHEDULER_OF_PLAIN_FIELDS = '''
"""The scheduler of releases that say yes to every live update."""
import logging

from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


class Scheduler:
    def get_internal_state(self, recv_req):
        ret = vars(get_global_server_args())
        ret.pop("model_config", None)
        return GetInternalStateReqOutput(internal_state=ret)

    def set_internal_state(self, recv_req):
        server_args_dict = recv_req.server_args
        args_allow_update = set(
            [
                "pp_max_micro_batch_size",
            ]
        )
        if_success = True
        for k, v in server_args_dict.items():
            if k not in args_allow_update:
                if_success = False
                break
            elif k == "pp_max_micro_batch_size" and v < 1:
                if_success = False
                break
        if if_success:
            for k, v in server_args_dict.items():
                setattr(get_global_server_args(), k, v)
        return SetInternalStateReqOutput(
            updated=True,
            server_args=vars(get_global_server_args()),
        )
'''

SCHEDULER_WITH_COMPONENT = '''
"""The scheduler."""
from sglang.srt.server_args import ServerArgs


class Scheduler:
    def set_internal_state(self, recv_req):
        return self.internal_state.set_internal_state(recv_req)

    def on_idle(self):
        self.check()
'''

INTERNAL_STATE = '''
"""Internal state."""
import logging

from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


class UpdateRejected(Exception):
    """No."""


class SchedulerInternalStateController:
    def __init__(self, scheduler, record_step_time):
        self.scheduler = scheduler

    def get_internal_state(self, recv_req):
        state = get_context().resolved_server_args_dict()
        for contribute in (self._add,):
            contribute(state)
        return GetInternalStateReqOutput(internal_state=msgspec_to_builtins(state))

    def set_internal_state(self, recv_req):
        handlers = self._update_handlers()
        requested = recv_req.server_args
        try:
            for key, value in requested.items():
                handler = handlers.get(key)
                if handler is None:
                    raise UpdateRejected(f"Updating {key} is not supported.")
                handler.validate(key, value)
        except UpdateRejected as rejection:
            logger.warning(str(rejection))
            return SetInternalStateReqOutput(updated=False)

        overrides = {}
        for key, value in requested.items():
            overrides.update(handlers[key].apply(key, value) or {})
        if overrides:
            get_context().override(source="update_server_args", **overrides)
        return SetInternalStateReqOutput(updated=True)

    def _update_handlers(self):
        return {
            "pp_max_micro_batch_size": _UpdateHandler(
                self._validate, _override
            ),
        }

    def _validate(self, key, value):
        if value < 1:
            raise UpdateRejected(f"{key} {value}")


class _UpdateHandler:
    def __init__(self, validate, apply):
        self.validate = validate
        self.apply = apply


def _override(key, value):
    return {key: value}
'''

HTTP_SERVER = '''
"""The HTTP server."""
from sglang.srt.server_args import ServerArgs

_global_state = None


def set_internal_state_of_others(request):
    return None


async def set_internal_state(obj, request):
    res = await _global_state.tokenizer_manager.set_internal_state(obj)
    return res
'''

FASTAPI = '''
"""The web framework."""


class HTTPException(Exception):
    def __init__(self, status_code, detail):
        super().__init__(detail)
        self.status_code = status_code
'''

COMMON = {
    "__init__.py": '"""SGLang, in small."""\n',
    "_version.py": "__version__ = version = '0.5.16'\n",
    "launch_server.py": 'import sglang.srt.server_args as s\nprint("serving from", s.__file__)\n',
    "srt/__init__.py": "",
    "srt/data.json": '{"not": "python"}\n',
    "srt/arg_groups/__init__.py": "",
    "srt/arg_groups/arg_utils.py": ARG_UTILS,
    "srt/entrypoints/__init__.py": "",
    "srt/entrypoints/http_server.py": HTTP_SERVER,
    "srt/managers/__init__.py": "",
}
SWITCHABLE = COMMON | {
    "srt/managers/scheduler_components/__init__.py": "",
    "srt/managers/scheduler_components/batch_result_processor.py": RESULTS,
    "srt/speculative/eagle_worker_v2.py": WORKER,
    "srt/speculative/adaptive_runtime_state.py": CONTROLLER,
    "srt/speculative/adaptive_spec_params.py": PARAMS,
    "srt/speculative/spec_info.py": SPEC_INFO,
}
PLAIN_LAYOUT = COMMON | {
    "srt/server_args.py": PLAIN_SERVER_ARGS,
    "srt/managers/scheduler.py": SCHEDULER_OF_PLAIN_FIELDS,
    "srt/speculative/eagle_worker_v2.py": WORKER_THAT_ALWAYS_DRAFTS,
}
OLD_LAYOUT = SWITCHABLE | {"srt/server_args.py": SERVER_ARGS, "srt/managers/scheduler.py": SCHEDULER}
NEW_LAYOUT = SWITCHABLE | {
    "srt/server_args.py": SERVER_ARGS_OF_FIELDS,
    "srt/arg_groups/fields/__init__.py": "",
    "srt/arg_groups/fields/spec.py": FIELDS_SPEC,
    "srt/managers/scheduler.py": SCHEDULER_WITH_COMPONENT,
    "srt/managers/scheduler_components/internal_state.py": INTERNAL_STATE,
}
LAYOUTS = {"plain": PLAIN_LAYOUT, "old": OLD_LAYOUT, "new": NEW_LAYOUT}


def write(folder: Path, layout: dict[str, str]) -> Path:
    """Write a layout as `folder/sglang`, with a web framework beside it, and return that package."""
    package = folder / "sglang"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fastapi.py").write_text(textwrap.dedent(FASTAPI).lstrip("\n"), encoding="utf-8")
    for path, text in layout.items():
        place = package / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return package

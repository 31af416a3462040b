"""Run in a fresh interpreter with the server's environment and path: prove that the patched SGLang does what it says.

Not imported by the patcher: its text is handed to `python -c`. Arguments: the folder that holds the patched
`sglang/`, the file descriptor for the verdict (JSON), and the claims to prove (JSON, see `claims`). Importing may
fail, and then the exceptions are what the parent classifies; every later check ends with a sentence of its own.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

WORKER = "sglang.srt.speculative.eagle_worker_v2"
WORKER_HOOKS = (("__init__", "attach"), ("forward_batch_generation", "note_forward"))
REQUESTS = "srt/entrypoints/http_server.py"
RUNTIME = "sglang.srt.speculative.specpatch"
HANDLERS = {
    "srt/managers/scheduler_components/internal_state.py": "SchedulerInternalStateController",
    "srt/managers/scheduler.py": "Scheduler",
}
OTHER_KEY = "pp_max_micro_batch_size"
UNKNOWN_KEY = "no_such_key"
Handler = Callable[[SimpleNamespace], object]


class Disproved(Exception):
    """A check found the patched tree not to do what it should."""


def require(holds: bool, sentence: str) -> None:
    """Raise Disproved with the sentence unless it holds."""
    if not holds:
        raise Disproved(sentence)


def loaded_code(member: str) -> CodeType:
    """Return the code that the import system would run for a member: its bytecode cache included."""
    name = "sglang." + member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise Disproved(f"{name} can't be found by the import system.")
    require(Path(spec.origin).samefile(Path(ROOT, "sglang", member)), f"{name} would be loaded from {spec.origin}.")
    code = spec.loader.get_code(name)  # type: ignore[union-attr]
    source = compile(Path(spec.origin).read_bytes(), spec.origin, "exec", dont_inherit=True)
    require(code == source, f"{name} would be loaded from bytecode that is not of {spec.origin}; delete __pycache__.")
    return source


def inner(code: CodeType, name: str) -> CodeType:
    """Return the one class body or function of that name inside some code."""
    found = [part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name]
    require(len(found) == 1, f"{code.co_name} has {len(found)} definitions of {name}, not one.")
    return found[0]


def check_import() -> ModuleType:
    """Import what the server imports first, and see that it comes from the patched tree."""
    server_args = importlib.import_module("sglang.srt.server_args")
    where = Path(server_args.__file__ or "")
    require(
        where.samefile(Path(ROOT, "sglang/srt/server_args.py")),
        f"sglang.srt.server_args was loaded from {where}, not from the patched tree in {ROOT}. "
        "Something comes before PYTHONPATH: start in a working directory without a folder named sglang.",
    )
    print("server_args OK", flush=True)
    return server_args


def parse(parser: ArgumentParser, name: str, *arguments: str) -> tuple[object, str]:
    """Return the parsed value of a field, or None and argparse's last line."""
    complaint = io.StringIO()
    with contextlib.redirect_stderr(complaint):
        try:
            return getattr(parser.parse_args(["--model-path", "m", *arguments]), name), ""
        except SystemExit:
            return None, complaint.getvalue().strip().splitlines()[-1]


def check_flags(server_args: ModuleType) -> None:
    """Parse every flag in both spellings, its default, and values that must be refused by name."""
    parser = ArgumentParser(prog="launch_server")
    server_args.ServerArgs.add_cli_args(parser)
    for claim in CLAIMS.fields:
        cases: list[tuple[tuple[str, ...], object]] = [((), claim.default)]
        for text, value in claim.accepted:
            cases += [((claim.flag, text), value), ((f"{claim.flag}={text}",), value)]
        for arguments, expected in cases:
            value, complaint = parse(parser, claim.name, *arguments)
            require(
                value == expected and type(value) is type(expected),
                f"{' '.join(arguments) or f'no {claim.flag}'} parses as {value!r}, not {expected!r}. {complaint}",
            )
        for bad in claim.refused:
            value, complaint = parse(parser, claim.name, f"{claim.flag}={bad}")
            require(
                value is None and f"argument {claim.flag}: " in complaint,
                f"{claim.flag}={bad} is not refused with a sentence (got {value!r}). {complaint}",
            )


def check_worker(codes: dict[str, CodeType]) -> None:
    """See the hooks in the worker class that SpeculativeAlgorithm hands out."""
    worker = inner(codes["srt/speculative/eagle_worker_v2.py"], "EAGLEWorkerV2")
    for method, hook in WORKER_HOOKS:
        names = inner(worker, method).co_names
        require({"specpatch", hook} <= set(names), f"EAGLEWorkerV2.{method} does not call specpatch.{hook}.")
    choice = inner(inner(loaded_code("srt/speculative/spec_info.py"), "SpeculativeAlgorithm"), "create_worker")
    require(
        {WORKER, "EAGLEWorkerV2"} <= set(choice.co_names),
        f"SpeculativeAlgorithm.create_worker does not hand out EAGLEWorkerV2 of {WORKER}.",
    )


def called_hooks() -> Iterator[tuple[str, str]]:
    """Yield every function of the added module that a patched file names, with that file."""
    for member in CLAIMS.members:
        if "/specpatch/" not in member:
            for node in ast.walk(ast.parse(Path(ROOT, "sglang", member).read_bytes())):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "specpatch"
                ):
                    yield node.attr, member


def check_runtime() -> ModuleType:
    """See that the added module has every function that is called, and knows which patch it is."""
    runtime = importlib.import_module(RUNTIME)
    for hook, member in called_hooks():
        require(callable(getattr(runtime, hook, None)), f"{RUNTIME} has no {hook}, which {member} calls.")
    identity = importlib.import_module(f"{RUNTIME}.engine").patch_identity()
    expected = (CLAIMS.generation, CLAIMS.release)
    require(identity == expected, f"the server would report generation and release {identity}, not {expected}.")
    return runtime


def without_patch() -> SimpleNamespace:
    """Return a stand-in scheduler whose worker the patch is not attached to."""
    return SimpleNamespace(
        draft_worker=None,
        max_running_requests=64,
        pp_size=1,
        ps=SimpleNamespace(pp_size=1),
        spec_algorithm=SimpleNamespace(is_none=lambda: False, is_dspark=lambda: False, is_dflash=lambda: False),
        metrics_reporter=SimpleNamespace(spec_total_num_forward_ct=0, spec_total_num_accept_tokens=0),
    )


def with_patch() -> SimpleNamespace:
    """Drive the decision at its boundaries and return a stand-in scheduler on which the patch is active."""
    rules = importlib.import_module(f"{RUNTIME}.threshold")
    hooks = importlib.import_module(f"{RUNTIME}.hooks")
    live = SimpleNamespace(threshold=0, permille=0)
    settings = rules.LiveSettings(lambda: live.threshold, lambda: live.permille)
    policy = rules.ThresholdPolicy(rules.ConfiguredSteps(3), settings, lambda: None)
    for live.threshold, batch, steps in (
        (0, 1, 3), (0, 10**6, 3), (1, 1, 0), (8, 1, 3), (8, 7, 3), (8, 8, 0), (8, 9, 0), (8, 7, 3),
    ):  # fmt: skip
        chosen = policy.get_steps_for_batch(batch)
        require(chosen == steps, f"threshold {live.threshold}, batch {batch}: {chosen} draft steps, not {steps}.")
    require(sorted(policy.candidate_steps) == [0, 3], f"prepared steps are {policy.candidate_steps}, not [0, 3].")
    for live.threshold, mode in ((1, 3), (1000, 0)):
        for live.permille, fewest, most in ((0, 0, 0), (500, 50, 108)):
            probes = [policy.get_steps_for_batch(8) for _ in range(200)].count(mode)
            require(
                fewest <= probes <= most,
                f"threshold {live.threshold}, batch 8, {live.permille} permille: {probes} of 200 steps are probes.",
            )
    scheduler = without_patch()
    scheduler.draft_worker = SimpleNamespace(specpatch=hooks.SpecPatch(policy))
    return scheduler


@dataclass
class Updates:
    """Collects what the handler would write into the config of the scheduler."""

    applied: dict[str, object] = field(default_factory=dict)

    def override(self, source: str = "", **fields: object) -> None:
        """Take the updates as the config object of newer releases does."""
        self.applied.update(fields)


class PlainConfig:
    """A config object of the releases that update it by attribute writes."""

    def __init__(self, updates: Updates) -> None:
        vars(self)["updates"] = updates

    def __setattr__(self, name: str, value: object) -> None:
        vars(self)["updates"].applied[name] = value


def handler_of(codes: dict[str, CodeType], scheduler: SimpleNamespace, updates: Updates) -> Handler:
    """Build the live-update handler from the code that will really load, around a stand-in scheduler."""
    member = next(path for path, owner in HANDLERS.items() if path in codes and has_handler(codes[path], owner))
    module, owner = codes[member], HANDLERS[member]
    quiet = SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), lambda *_: None))
    world: dict[str, object] = {
        "__builtins__": builtins,
        "__name__": "sglang." + member.removesuffix(".py").replace("/", "."),
        "specpatch": importlib.import_module(RUNTIME),
        "logger": quiet,
        "logging": quiet,
        "SetInternalStateReqOutput": lambda updated=None, **_: updated,
        "get_context": lambda: updates,
        "get_server_args": lambda: updates,
        "get_global_server_args": lambda: PlainConfig(updates),
        "get_parallel": lambda: SimpleNamespace(pp_size=1),
        "msgspec_to_builtins": lambda value: value,
    }
    if owner == "Scheduler":
        setter = FunctionType(inner(inner(module, owner), "set_internal_state"), world)
        return lambda request: setter(scheduler, request)
    world["UpdateRejected"] = type("UpdateRejected", (Exception,), {})
    world["_override"] = FunctionType(inner(module, "_override"), world)
    build_class = vars(builtins)["__build_class__"]
    for name in ("_UpdateHandler", owner):
        world[name] = build_class(FunctionType(inner(module, name), world), name)
    made = world[owner](scheduler, False)  # type: ignore[operator]
    setter = made.set_internal_state
    return lambda request: setter(request)


def has_handler(module: CodeType, owner: str) -> bool:
    """Tell whether a class of the module knows the keys of live updates."""
    owners = [part for part in module.co_consts if isinstance(part, CodeType) and part.co_name == owner]
    return any({claim.name for claim in live_claims()} <= constants(part) for part in owners)


def live_claims() -> list[SimpleNamespace]:
    """Return the claims about fields that a live update may change."""
    return [claim for claim in CLAIMS.fields if claim.live_accepted]


def constants(code: CodeType) -> set[object]:
    """Return every constant in some code, those of its functions and its constant collections included."""
    found: set[object] = set()
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found |= constants(part)
        elif isinstance(part, (tuple, frozenset)):
            found |= set(part)
        else:
            found.add(part)
    return found


def live_updates() -> Iterator[tuple[dict[str, object], bool]]:
    """Yield live updates and whether the values of our keys are good."""
    claims = live_claims()
    good = {claim.name: claim.live_accepted[0] for claim in claims}
    yield good, True
    yield {**good, UNKNOWN_KEY: 1}, True
    for claim in claims:
        yield from (({claim.name: value}, True) for value in claim.live_accepted)
        yield from (({claim.name: value}, False) for value in claim.live_refused)
        yield {**good, claim.name: -1}, False
        yield {OTHER_KEY: 1, claim.name: -1}, False


def check_live_update(codes: dict[str, CodeType], scheduler: SimpleNamespace) -> None:
    """Send good and bad updates through the handler: a good one is written, a bad one leaves nothing behind."""
    logging.disable(logging.CRITICAL)
    for request, good in live_updates():
        updates = Updates()
        handler_of(codes, scheduler, updates)(SimpleNamespace(server_args=dict(request)))
        expected = request if good and UNKNOWN_KEY not in request and CLAIMS.switchable else {}
        require(updates.applied == expected, f"a live update {request} writes {updates.applied}, not {expected}.")


def check_readback(codes: dict[str, CodeType], runtime: ModuleType, scheduler: SimpleNamespace) -> None:
    """See that the internal state is given what is in force, and by which patch."""
    member = next(path for path, owner in HANDLERS.items() if path in codes and has_handler(codes[path], owner))
    getter = inner(inner(codes[member], HANDLERS[member]), "get_internal_state")
    require("add_readback" in getter.co_names, f"{member}: get_internal_state does not call specpatch.add_readback.")
    state: dict[str, Any] = {}
    runtime.add_readback(scheduler, state)
    said = (state["specpatch"]["generation"], state["specpatch"]["active"])
    expected = (CLAIMS.generation, CLAIMS.switchable)
    require(said == expected, f"the server would say that generation and activity are {said}, not {expected}.")
    missing = [claim.name for claim in live_claims() if claim.name not in state]
    require(not (missing and CLAIMS.switchable), f"the server would not say what is in force of {', '.join(missing)}.")


def check_request(codes: dict[str, CodeType]) -> None:
    """Send bodies through the HTTP route: a bad value must not reach the scheduler in another shape."""
    forwarded: list[object] = []

    async def forward(update: object) -> list[bool]:
        forwarded.append(update)
        return [True]

    manager = SimpleNamespace(set_internal_state=forward)
    world = {
        "__builtins__": builtins,
        "__name__": "http_server",
        "specpatch": importlib.import_module(RUNTIME),
        "_global_state": SimpleNamespace(tokenizer_manager=manager),
    }
    route = FunctionType(inner(codes[REQUESTS], "set_internal_state"), world)
    requests: list[tuple[dict[str, object], bool]] = [({OTHER_KEY: 1}, True)]
    requests += [(update, good and CLAIMS.switchable) for update, good in live_updates()]
    for update, passes in requests:
        forwarded.clear()
        body: dict[str, object] = {"server_args": update}

        async def read(body: dict[str, object] = body) -> dict[str, object]:
            return body

        with contextlib.suppress(Exception):
            asyncio.run(route(body, SimpleNamespace(json=read)))
        require(forwarded == ([body] if passes else []), f"the request {json.dumps(body)} is passed on as {forwarded}.")


def main() -> None:
    """Run every check in turn; each says so on a line of its own."""
    check_flags(check_import())
    print("flag OK", flush=True)
    codes = {member: loaded_code(member) for member in CLAIMS.members}
    runtime = check_runtime()
    if CLAIMS.switchable:
        check_worker(codes)
        print("worker hook OK", flush=True)
    scheduler = with_patch() if CLAIMS.switchable else without_patch()
    check_live_update(codes, scheduler)
    check_request(codes)
    check_readback(codes, runtime, scheduler)
    print("live update OK" if CLAIMS.switchable else "live update refused OK", flush=True)


def raised(error: BaseException | None) -> list[str]:
    """Return the exceptions that led to one, the first raised first, as a traceback would print their last lines."""
    chain: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        chain.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain[::-1]


ROOT = sys.argv[1] if __name__ == "__main__" else ""
CLAIMS = json.loads(
    sys.argv[3] if __name__ == "__main__" else "{}", object_hook=lambda members: SimpleNamespace(**members)
)

if __name__ == "__main__":
    verdict: dict[str, object] = {"proven": False, "problem": None, "raised": []}
    try:
        main()
    except Disproved as disproved:
        verdict["problem"] = str(disproved)
        raise SystemExit(f"import check: {disproved}") from None
    except BaseException as error:
        verdict["raised"] = raised(error)
        raise
    else:
        verdict["proven"] = True
    finally:
        os.write(int(sys.argv[2]), json.dumps(verdict).encode())

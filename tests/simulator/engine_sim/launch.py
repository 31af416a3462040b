"""Parse the command line with the SGLang sources on the path, then become the server process.

This runs in place of `sglang.launch_server`. The real `prepare_server_args` does the work (the real flags, types,
choices, `--config` files and usage errors), with one seam: between argparse and the `ServerArgs` record.

- RECORD: releases whose record resolves itself when it is made get the model path "dummy", SGLang's own way to stop
  before anything looks at a model; the true path is put back after. Later releases resolve in a step of its own.
- FULL (what AUTO takes if the model path is a local folder): SGLang's whole resolution of defaults and conflicts
  runs on the model's config.json. Without a GPU SGLang can't find a device, so `cuda` is filled in if none was given.

The parsed values then pass to a fresh interpreter by exec, because importing SGLang brings torch and about 800 MiB
that a server on a small machine should not keep.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from unittest import mock

from engine_sim.arguments import OFF_PATH_FIELD, PROBE_FIELD, THRESHOLD_FIELD, EngineArguments, masked_json
from engine_sim.patch import RUNTIME_DIRECTORY, load_runtime
from engine_sim.settings import Resolution, SettingsError, settings_from_environment
from engine_sim.tree_traits import answers_true_always, takes_only_numbers

# SGLang's worker classes by algorithm, as far as the patch tells them apart.
_WORKERS = {"EAGLE": "EAGLEWorkerV2", "EAGLE3": "EAGLEWorkerV2"}


def launch(argv: list[str]) -> NoReturn:
    """Parse `argv` and serve; ends the process with 2 on a wrong setting or flag."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        resolution = settings_from_environment(os.environ).resolution
    except SettingsError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(2) from error
    become_server(parse(argv, resolution))


def parse(argv: list[str], resolution: Resolution) -> EngineArguments:
    """Parse with SGLang's own code.

    Raises SystemExit(2) with SGLang's usage on a wrong flag, and what SGLang's resolution raises on a conflict.
    """
    import sglang
    from sglang.version import __version__

    record, resolved = _prepare(argv, resolution)
    tree = Path(sglang.__path__[0])
    view = _view(record, resolved=resolved)
    fields = [(name, getattr(view, name)) for name in _field_names(record)]
    return EngineArguments(
        host=view.host,
        port=view.port,
        model_path=view.model_path,
        served_model_name=view.served_model_name or view.model_path,
        tp_size=view.tp_size,
        dp_size=view.dp_size or 1,
        api_key=view.api_key,
        admin_api_key=view.admin_api_key,
        enable_metrics=view.enable_metrics,
        max_running_requests=view.max_running_requests,
        max_total_tokens=view.max_total_tokens,
        chunked_prefill_size=view.chunked_prefill_size,
        context_length=view.context_length,
        stream_interval=view.stream_interval,
        speculative_algorithm=view.speculative_algorithm,
        num_steps=view.speculative_num_steps,
        threshold=getattr(view, THRESHOLD_FIELD, None),
        probe_permille=getattr(view, PROBE_FIELD, None),
        off_path=getattr(view, OFF_PATH_FIELD, None),
        inactive_reason=_inactive_reason(tree, record),
        release=__version__,
        tree=str(tree),
        resolved=resolved,
        numeric_updates=takes_only_numbers(tree),
        answers_true_always=answers_true_always(tree),
        server_args=masked_json(fields),
    )


def become_server(arguments: EngineArguments) -> NoReturn:
    """Replace this process by the server; the arguments travel in memory, since they may hold keys."""
    descriptor = os.memfd_create("engine-arguments", 0)
    os.write(descriptor, arguments.to_json().encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "engine_sim.serve", "--arguments-fd", str(descriptor)])


def _prepare(argv: list[str], resolution: Resolution) -> tuple[Any, bool]:
    """The ServerArgs record, and whether it was resolved in full."""
    from sglang.srt import server_args as module

    owner: Any = module.ServerArgs
    resolves_later = hasattr(owner, "resolve_once")
    make_record = owner.from_cli_args
    paths: list[str] = []
    full: list[bool] = []

    def adjusted(namespace: Any) -> Any:
        paths.append(namespace.model_path)
        full.append(_wants_full(resolution, namespace.model_path))
        if full[-1]:
            namespace.device = namespace.device or "cuda"
        elif not resolves_later:
            namespace.model_path = "dummy"
        return make_record(namespace)

    with mock.patch.object(owner, "from_cli_args", adjusted):
        record = module.prepare_server_args(argv)
    if full[-1] and resolves_later:
        record.resolve_once()
    elif not full[-1]:
        _restore_path(record, paths[-1])
    return record, full[-1]


def _wants_full(resolution: Resolution, model_path: str) -> bool:
    if resolution is Resolution.AUTO:
        return (Path(model_path) / "config.json").is_file()
    return resolution is Resolution.FULL


def _restore_path(record: Any, path: str) -> None:
    for name in ("model_path", "tokenizer_path", "served_model_name"):
        if getattr(record, name) == "dummy":
            setattr(record, name, path)


def _view(record: Any, *, resolved: bool) -> Any:
    """The record as it is in effect: from some release on, resolution is kept beside the raw values."""
    if not (resolved and hasattr(record, "resolve_once")):
        return record
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(record)


def _inactive_reason(tree: Path, record: Any) -> str | None:
    """Ask the patch (and through it SGLang) whether a worker with these arguments could obey a threshold."""
    runtime = load_runtime(tree / RUNTIME_DIRECTORY)
    algorithm = record.speculative_algorithm
    if runtime is None or algorithm is None:
        return None
    worker: Any = type(_WORKERS.get(algorithm, f"{algorithm}Worker"), (), {"__module__": __name__})()
    worker.server_args = record
    try:
        reason: str | None = importlib.import_module(f"{runtime.__name__}.engine").inactive_reason(worker)
    except Exception as error:
        print(f"whether the threshold is supported here was not judged: {error!r}", file=sys.stderr)
        return None
    return reason


def _field_names(record: Any) -> list[str]:
    names: list[str] = getattr(record, "__struct_fields__", None) or [f.name for f in dataclasses.fields(record)]
    return [name for name in names if not name.startswith("_")]


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    print("stopped while reading the command line", flush=True)
    os._exit(128 + signum)

"""The simulated engine on real SGLang sources: the real patch, the real launch path, the real argument parser."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from real_sglang import RELEASES
from simulated_engine import free_port

from engine_sim.auth import ADMIN_PATHS, allowed
from engine_sim.tree_traits import answers_true_always, takes_only_numbers
from sglang_specpatch import archive

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROOT = pathlib.Path(__file__).parents[2]
SIMULATOR = ROOT / "tests/simulator"
RELEASE = "0.5.23"
FIELD = "speculative_disable_batch_threshold"
PROBE = "speculative_probe_permille"
START_SECONDS = 300
FLAGS = {
    "--model-path": "org/model",
    "--served-model-name": "served",
    "--host": "127.0.0.1",
    "--tp-size": "8",
    "--speculative-algorithm": "EAGLE3",
    "--speculative-draft-model-path": "org/draft",
    "--speculative-num-steps": "3",
    "--speculative-eagle-topk": "1",
    "--speculative-num-draft-tokens": "4",
    "--max-running-requests": "64",
}


def cache() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("SGLANG_DEV_CACHE") or pathlib.Path(base) / "sglang-operator")


def tree(release: str) -> pathlib.Path:
    folder = cache() / "trees" / release
    assert (folder / "sglang").is_dir(), f"{folder} is missing: `make test-engine` fetches it"
    return folder


def environment(image: pathlib.Path, **more: str) -> dict[str, str]:
    """The environment of a container whose SGLang lies in `image`."""
    packages = cache() / "engine-env"
    assert packages.is_dir(), f"{packages} is missing: `make test-engine` fetches it"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(map(str, (image, SIMULATOR, ROOT / "operator", packages)))
    return {**kept, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **more}


def finished(arguments: list[str], image: pathlib.Path, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run Python to its end in a container's environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(image),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


@dataclasses.dataclass(frozen=True)
class Image:
    """What the simulated engine's image holds, and the patch program beside it."""

    folder: pathlib.Path
    program: pathlib.Path
    patched: pathlib.Path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image's SGLang with the simulator's entry, patched and proven by the real program."""
    base = tmp_path_factory.mktemp("image")
    shutil.copytree(tree(RELEASE), base / "image", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SIMULATOR / "launch_server.py", base / "image/sglang/launch_server.py")
    made = Image(base / "image", base / "specpatch.pyz", base / "patched")
    made.program.write_bytes(archive.build())
    done = finished([str(made.program), "apply", "--to", str(made.patched)], made.folder, base)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "server_args OK" in done.stdout
    return made


def launch_command(image: Image, *flags: str) -> list[str]:
    fixed = itertools.chain.from_iterable(FLAGS.items())
    server = [sys.executable, "-m", "sglang.launch_server", *fixed, "--enable-metrics", *flags]
    return [sys.executable, str(image.program), "run", "--tree", str(image.patched), "--", *server]


@contextlib.contextmanager
def launched(image: Image, log: pathlib.Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, killed at the end if it still runs."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            launch_command(image, *flags),
            env=environment(image.folder, SGLANG_SIM_CURVE="triton-decode", SGLANG_SIM_LOAD_SECONDS="0"),
            cwd=image.folder.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=10)


def log_unless_running(process: subprocess.Popen[bytes], log: pathlib.Path) -> str | None:
    return None if process.poll() is None else log.read_text()


async def until_ready(session: aiohttp.ClientSession, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            assert log_unless_running(process, log) is None
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get("/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.2)


async def posted(session: aiohttp.ClientSession, path: str, body: Any, status: int = 200) -> Any:
    async with session.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def state(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/server_info") as response:
        (only,) = (await response.json())["internal_states"]
        found: dict[str, Any] = only
        return found


async def test_the_launch_path_serves_what_the_patched_sources_say(image: Image, tmp_path: pathlib.Path) -> None:
    port, log = free_port(), tmp_path / "server.log"
    timeout = aiohttp.ClientTimeout(total=30)
    flags = (f"--{FIELD.replace('_', '-')}", "8", "--speculative-off-path", "zero-step")
    with launched(image, log, "--port", str(port), *flags) as process:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
            await until_ready(session, process, log)
            assert f"{FIELD} = 8" in log.read_text()
            before = await state(session)
            assert (before[FIELD], before["tp_size"], before["speculative_num_steps"]) == (8, 8, 3)
            assert before["specpatch"] == {
                "generation": 2,
                "release": RELEASE,
                "active": True,
                "inactive_reason": None,
                "off_path": "ZeroStep",
                "off_path_reason": "chosen by --speculative-off-path zero-step",
                "verify_tile": "default",
            }
            work = {"text": "hello", "sampling_params": {"max_new_tokens": 40}}
            await asyncio.gather(*(posted(session, "/generate", work) for _ in range(12)))
            assert await posted(session, "/set_internal_state", {"server_args": {FIELD: 0, PROBE: 500}}) == [True]
            bad = {"server_args": {FIELD: 12, PROBE: -1}}
            assert f"{PROBE} must be" in (await posted(session, "/set_internal_state", bad, status=400))["detail"]
            longer = {"text": "hello", "sampling_params": {"max_new_tokens": 300}}
            await asyncio.gather(*(posted(session, "/generate", longer) for _ in range(12)))
            after = await state(session)
            assert (after[FIELD], after[PROBE]) == (0, 500)
            async with session.get("/metrics") as response:
                text = await response.text()
            for name, mode in (("mode_steps", "on"), ("mode_steps", "off"), ("probe_steps", "off")):
                lines = [line for line in text.splitlines() if line.startswith(f"sglang:spec_{name}_total{{")]
                found = [line for line in lines if f'mode="{mode}"' in line and 'batch_size="9-12"' in line]
                assert [float(line.rpartition(" ")[2]) > 0 for line in found] == [True], lines
        assert resident_mebibytes(process.pid) < 150, "importing SGLang must not stay in the server's memory"
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - asked < 3


def resident_mebibytes(pid: int) -> float:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_bad_flag_ends_the_start_with_sglangs_own_words(image: Image, tmp_path: pathlib.Path) -> None:
    log = tmp_path / "server.log"
    with launched(image, log, f"--{FIELD.replace('_', '-')}=-1") as process:
        assert process.wait(timeout=START_SECONDS) == 2
    assert "argument --speculative-disable-batch-threshold: must be a whole number from 0" in log.read_text()


PARSE_TWICE = """
import sys
from engine_sim.launch import parse
from engine_sim.settings import Resolution
for resolution in (Resolution.RECORD, Resolution.FULL):
    print("PARSED", parse(sys.argv[1:], resolution).to_json())
"""


def model_folder(path: pathlib.Path, layers: int, architecture: str) -> str:
    path.mkdir()
    config = {
        "architectures": [architecture], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "draft_vocab_size": 32000, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize("release", ["0.5.14", RELEASE])
def test_sglangs_own_resolution_runs_on_a_local_model(release: str, tmp_path: pathlib.Path) -> None:
    model = model_folder(tmp_path / "model", 32, "LlamaForCausalLM")
    draft = model_folder(tmp_path / "draft", 1, "LlamaForCausalLMEagle3")
    flags = ["--model-path", model, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft]
    command = ["-c", PARSE_TWICE, *flags, "--tp-size", "8", "--api-key", "secret"]
    done = finished(command, tree(release), tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("PARSED ") for line in done.stdout.splitlines() if line.startswith("PARSED ")]
    record, full = map(json.loads, lines)
    assert (record["release"], record["threshold"], record["resolved"]) == (release, None, False)
    assert (record["probe_permille"], record["off_path"]) == (None, None)
    assert (record["model_path"], record["served_model_name"]) == (model, model)
    assert (record["max_running_requests"], record["num_steps"]) == (None, None)
    assert full["resolved"] is True
    assert full["max_running_requests"] == 48, "SGLang's own cap with speculation"
    assert full["num_steps"] == 5, "SGLang's own choice for Llama"
    assert full["api_key"] == "secret"
    assert "secret" not in full["server_args"]


def real_auth(release: str) -> ModuleType:
    """SGLang's own module, which imports nothing of the rest."""
    path = tree(release) / "sglang/srt/utils/auth.py"
    spec = importlib.util.spec_from_file_location(f"sglang_auth_{release.replace('.', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("release", ["0.5.14", "0.5.18", RELEASE])
def test_the_key_rule_is_sglangs(release: str) -> None:
    auth = real_auth(release)
    keys = (None, "user", "boss")
    headers = (None, "", "user", "Bearer user", "bearer boss", "Bearer  user", "Basic user", "Bearer usér")
    paths = ("/generate", "/server_info", "/health", "/metrics", "/health_generate", *ADMIN_PATHS)
    for api_key, admin_api_key, header, path in itertools.product(keys, keys, headers, paths):
        level = auth.AuthLevel.ADMIN_OPTIONAL if path in ADMIN_PATHS else auth.AuthLevel.NORMAL
        given: dict[str, Any] = {"method": "GET", "path": path, "api_key": api_key, "admin_api_key": admin_api_key}
        try:
            expected = auth.decide_request_auth(**given, authorization_header=header, auth_level=level).allowed
        except TypeError:
            expected = False  # keys that are not ASCII fail inside the real one, which answers 500
        assert allowed(**given, authorization=header) is expected, (given, header)


def test_traits_are_read_from_the_sources() -> None:
    found = {
        release: (
            takes_only_numbers(tree(release) / "sglang"),
            answers_true_always(tree(release) / "sglang"),
        )
        for release in RELEASES
    }
    between = ("0.5.15", "0.5.15.post1")
    older, newer = RELEASES[: RELEASES.index(between[0])], RELEASES[RELEASES.index(between[-1]) + 1 :]
    assert {found[release] for release in older} == {(False, True)}
    assert {found[release] for release in between} == {(False, False)}
    assert {found[release] for release in newer} == {(True, False)}

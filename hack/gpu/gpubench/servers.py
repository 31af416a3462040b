"""SGLang servers on this machine's GPU: how each kind is started, awaited and ended, and what it says of itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpubench.client import Client
from gpubench.models import Pair

ROOT = Path(__file__).resolve().parents[3]
STOP_SECONDS = 30.0
_OFF_PATH_LINE = re.compile(r"Off path: .*")
_WINDOW = re.compile(r"Decode batch.*?#running-req: (\d+),.*?gen throughput \(token/s\): ([\d.]+)")


class StartFailed(RuntimeError):
    """A server did not come up; the message ends with its last words."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of server: with or without speculation, SGLang as it is installed or patched."""

    name: str
    speculates: bool
    patched: bool
    flags: tuple[str, ...] = ()
    backends: tuple[str, ...] | None = None
    """Attention backends that it makes sense with; None: all."""


PLAIN = Kind(name="plain", speculates=False, patched=False)
UNPATCHED = Kind(name="unpatched", speculates=True, patched=False)
DECODE = Kind(name="decode", speculates=True, patched=True, flags=("--speculative-off-path", "decode"))
ZERO_STEP = Kind(name="zero-step", speculates=True, patched=True, flags=("--speculative-off-path", "zero-step"))
SHORT_TILE = Kind(
    name="tile",
    speculates=True,
    patched=True,
    flags=(*DECODE.flags, "--speculative-verify-tile", "16x128"),
    backends=("triton",),
)
KINDS = {kind.name: kind for kind in (PLAIN, UNPATCHED, DECODE, ZERO_STEP, SHORT_TILE)}


@dataclass(frozen=True, kw_only=True)
class Patch:
    """The engine patch: the program, its digest, and the patched tree that it made."""

    program: Path
    digest: str
    tree: Path


def apply_patch(folder: Path) -> Patch:
    """Patch a copy of the installed SGLang into `folder`, as a pod's init container does.

    Raises:
        StartFailed: the patch refused, or its import check failed; its own words say why.
    """
    sys.path.insert(0, str(ROOT / "operator"))
    from sglang_specpatch import archive

    content = archive.build()
    folder.mkdir(parents=True, exist_ok=True)
    program, tree = folder / "specpatch.pyz", folder / "patched"
    program.write_bytes(content)
    shutil.rmtree(tree, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, str(program), "apply", "--to", str(tree)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise StartFailed(f"the engine patch ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return Patch(program=program, digest=hashlib.sha256(content).hexdigest(), tree=tree)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all servers of a run have in common."""

    models: Pair
    steps: int
    max_requests: int
    max_tokens: int
    memory_fraction: float
    flags: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    log_every_steps: int = 10


def command(kind: Kind, backend: str, options: Options, *, port: int, nccl_port: int, patch: Patch | None) -> list[str]:
    """Return the command line of one server."""
    prefix: list[str] = []
    if kind.patched:
        assert patch is not None
        prefix = [sys.executable, str(patch.program), "run", "--tree", str(patch.tree), "--"]
    models = options.models
    flags = ["--model-path", models.target, "--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(nccl_port)]
    flags += ["--attention-backend", backend, "--skip-tokenizer-init", "--disable-radix-cache", "--enable-metrics"]
    flags += ["--decode-log-interval", str(options.log_every_steps)]
    flags += ["--max-running-requests", str(options.max_requests), "--max-total-tokens", str(options.max_tokens)]
    flags += ["--mem-fraction-static", str(options.memory_fraction)]
    flags += ["--load-format", "dummy"] if models.dummy else []
    if kind.speculates:
        flags += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", models.draft]
        flags += ["--speculative-num-steps", str(options.steps), "--speculative-eagle-topk", "1"]
        flags += ["--speculative-num-draft-tokens", str(options.steps + 1)]
        flags += ["--speculative-draft-load-format", "dummy"] if models.dummy else []
    return [*prefix, sys.executable, "-m", "sglang.launch_server", *flags, *kind.flags, *options.flags]


class Server:
    """One running server, in a process group of its own. It ends with `stop`, in any case."""

    def __init__(self, kind: Kind, backend: str, options: Options, *, log: Path, patch: Patch | None) -> None:
        self.kind = kind
        self.log = log
        self.seconds_to_start: float | None = None
        port, nccl_port = _free_ports(2)
        self.client = Client(port)
        self.command = command(kind, backend, options, port=port, nccl_port=nccl_port, patch=patch)
        self._began = time.monotonic()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **options.variables}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def await_start(self, deadline: float) -> None:
        """Wait until the server is ready; `deadline` is a moment of the monotonic clock.

        Raises:
            StartFailed: it ended, or was not ready in time.
        """
        while not self.client.healthy():
            if (code := self._process.poll()) is not None:
                raise StartFailed(f"{self.kind.name} ended with {code}:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.kind.name} was not ready in time:\n{self.last_words()}")
            time.sleep(0.5)
        self.seconds_to_start = time.monotonic() - self._began

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take the server off the processors meanwhile: an idle one looks for requests all the time."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End the server and all that it started."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, kind)
            deadline = time.monotonic() + STOP_SECONDS
            while _group_lives(self._process.pid) and time.monotonic() < deadline:
                self._process.poll()
                time.sleep(0.1)
        self._process.wait(STOP_SECONDS)

    def last_words(self) -> str:
        """The end of the log, without the frames of tracebacks."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line[:300] for line in lines if not line.startswith("  File"))[-3000:]

    def off_path_lines(self) -> list[str]:
        """What the engine patch logged about its own decode step."""
        return _OFF_PATH_LINE.findall(self.log.read_text(errors="replace"))

    def log_position(self) -> int:
        """Where the log ends now."""
        return self.log.stat().st_size

    def decode_rates(self, position: int, requests: int) -> list[float]:
        """Token rates that the server logged after `position` while exactly so many requests were decoded."""
        with self.log.open(errors="replace") as stream:
            stream.seek(position)
            return rates_in(stream.read(), requests)

    def gpu_memory_mib(self) -> int | None:
        """GPU memory of the server's processes by nvidia-smi; None where it doesn't know."""
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        try:
            listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        used = 0
        for line in listed.splitlines():
            pid, _, memory = line.partition(",")
            if pid.strip().isdigit() and memory.strip().isdigit() and _session_of(int(pid)) == self._process.pid:
                used += int(memory)
        return used or None


def end_servers_with_this_process() -> None:
    """Have a signal to end run what is due at the end: servers live in process groups of their own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def rates_in(log: str, requests: int) -> list[float]:
    """Return the token rates of the log's lines about exactly so many requests.

    The first one is left out: its time began before the last prefill ended.
    """
    found = [(int(running), float(rate)) for running, rate in _WINDOW.findall(log)]
    return [rate for running, rate in found if running == requests][1:]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes: Sequence[socket.socket] = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]

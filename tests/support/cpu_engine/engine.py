"""A real SGLang server on a CPU: real HTTP, scheduler, EAGLE-3 worker and engine patch, tiny models.

    with CpuEngine("0.5.16") as engine:
        engine.set_threshold(1)
        answers = engine.generate([Prompt((5, 6, 7), new_tokens=20)])

Speed says nothing here, equality of outputs says everything: at temperature 0 a server must say the same with and
without speculation.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

from cpu_engine import prepared
from cpu_engine.client import EngineClient, EngineFailed

START_SECONDS = 600
STOP_SECONDS = 20
CRASHED = "Scheduler hit an exception"
DRAFT_STEPS = 3
END_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
"""A test that is killed leaves no server behind, where util-linux is installed."""

BASE_FLAGS = (
    "--device", "cpu", "--dtype", "float32", "--disable-cuda-graph", "--attention-backend", "triton",
    "--sampling-backend", "pytorch", "--grammar-backend", "xgrammar", "--max-running-requests", "16",
    "--max-total-tokens", "8192", "--mem-fraction-static", "0.3", "--enable-metrics", "--skip-server-warmup",
    "--random-seed", "1", "--sleep-on-idle",
)  # fmt: skip


class CpuEngine(EngineClient):
    """One server; a context manager. `flags` come last and so win, `variables` are added to the environment.

    `latent` takes the target with latent attention.
    """

    def __init__(
        self,
        release: str,
        *flags: str,
        speculating: bool = True,
        latent: bool = False,
        overlap: bool = True,
        variables: Mapping[str, str] | None = None,
        api_key: str | None = None,
        admin_key: str | None = None,
    ) -> None:
        super().__init__(api_key, admin_key)
        self.release = release
        keys = {"--api-key": api_key, "--admin-api-key": admin_key}
        self._flags = [word for name, key in keys.items() if key for word in (name, key)]
        self._flags += [*_drafting(speculating), *([] if overlap else ["--disable-overlap-schedule"]), *flags]
        self._variables = dict(variables or {})
        self._latent = latent
        self._folder = tempfile.TemporaryDirectory(prefix="cpu-engine-")
        self._log = Path(self._folder.name) / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process; `wait` for it before use. Two servers start side by side in the time of one."""
        package = prepared.tree(self.release)
        self.port = _free_port()
        command = [*END_WITH_PARENT, sys.executable, "-m", "sglang.launch_server"]
        models = prepared.made_models()
        target = models.latent_target if self._latent else models.target
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--model-path", str(target)]
        command += [*BASE_FLAGS, *self._flags]
        self._began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**prepared.environment(package), **self._variables},
                cwd=self._folder.name,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait(self) -> Self:
        """Wait until the server answers; raises EngineFailed with the end of its log."""
        assert self._process is not None
        while time.monotonic() < self._began + START_SECONDS:
            if self._process.poll() is not None or CRASHED in self.log():
                raise EngineFailed(f"SGLang {self.release} ended at its start:\n{self.log_end()}")
            with contextlib.suppress(requests.RequestException):
                if self.send("GET", "/health").status_code == 200:
                    return self
            time.sleep(0.25)
        raise EngineFailed(f"SGLang {self.release} not ready within {START_SECONDS} s:\n{self.log_end()}")

    def stop(self) -> None:
        """End the server and all its processes, which are a process group of their own."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
        self._folder.cleanup()

    def log(self) -> str:
        """Return what the server has printed."""
        return self._log.read_text(errors="replace")

    @contextlib.contextmanager
    def starting(self) -> Iterator[Self]:
        """Start, but leave it to the block to wait: another server can start meanwhile."""
        try:
            yield self.start()
        finally:
            self.stop()

    def __enter__(self) -> Self:
        try:
            return self.start().wait()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _drafting(speculating: bool) -> list[str]:
    if not speculating:
        return []
    return [
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(prepared.made_models().draft),
        "--speculative-num-steps", str(DRAFT_STEPS), "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(DRAFT_STEPS + 1),
    ]  # fmt: skip


def _free_port() -> int:
    """Return a free port below the ephemeral ones: SGLang derives others from it by adding up to 10,000."""
    for _ in range(100):
        port = random.randrange(20000, 32000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise EngineFailed("no free port between 20000 and 32000")

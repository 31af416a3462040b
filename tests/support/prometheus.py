"""A real Prometheus on loopback: scraping small exporters, or holding a history that was written beforehand.

The program is the one on PATH, else the one that `hack/cluster` unpacks into the cache. Only processes started here
are ended, and every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import pathlib
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from localcluster import packages, settings
from localcluster.eventually import eventually

_START_SECONDS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One scrape target: a job of its own, and the labels that relabelling would add."""

    job: str
    address: str
    labels: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """The history of one series: (time, value) pairs in order of time."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[datetime, float], ...]


class Exporter:
    """An HTTP server on loopback that answers every GET with `text`."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.requests = 0
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.requests += 1
                body = exporter.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Stop listening; a second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def programs() -> tuple[pathlib.Path, pathlib.Path]:
    """Prometheus and promtool; unpacks Debian's package into the cache when there are none."""
    on_path = [shutil.which(name) for name in ("prometheus", "promtool")]
    if all(on_path):
        return pathlib.Path(on_path[0] or ""), pathlib.Path(on_path[1] or "")
    program = packages.unpacked_prometheus(settings.cache_dir())
    return program, program.with_name("promtool")


@contextlib.contextmanager
def prometheus(
    folder: pathlib.Path,
    *,
    targets: Iterable[Target] = (),
    history: Iterable[Samples] = (),
    scrape_seconds: float = 0.5,
) -> Iterator[str]:
    """Run Prometheus with its data in `folder`; yields its address, for example `http://127.0.0.1:41234`."""
    program, promtool = programs()
    data = folder / "data"
    _write_history(promtool, folder, data, tuple(history))
    config = folder / "prometheus.yml"
    config.write_text(_config(tuple(targets), scrape_seconds))
    log = folder / "prometheus.log"
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    command = [
        str(program),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=20y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        _await_ready(process, address, log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _await_ready(process: subprocess.Popen[bytes], address: str, log: pathlib.Path) -> None:
    def ready() -> bool:
        if process.poll() is not None:
            raise SystemError(f"Prometheus ended with {process.returncode}: {log.read_text()}")
        try:
            with urllib.request.urlopen(f"{address}/-/ready", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    eventually(ready, within_seconds=_START_SECONDS, every_seconds=0.1, what="Prometheus answers on /-/ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _config(targets: tuple[Target, ...], scrape_seconds: float) -> str:
    milliseconds = f"{scrape_seconds * 1000:.0f}ms"
    lines = [f"global: {{scrape_interval: {milliseconds}, scrape_timeout: {milliseconds}}}", "scrape_configs:"]
    for target in targets:
        labels = ", ".join(f'{name}: "{value}"' for name, value in target.labels.items())
        lines.append(f"  - job_name: {target.job}")
        lines.append(f'    static_configs: [{{targets: ["{target.address}"], labels: {{{labels}}}}}]')
    return "\n".join(lines if targets else lines[:1]) + "\n"


def _write_history(
    promtool: pathlib.Path, folder: pathlib.Path, data: pathlib.Path, history: tuple[Samples, ...]
) -> None:
    if not history:
        return
    rows = sorted(
        (moment.timestamp(), f"{series.name}{_labels(series.labels)} {value} {moment.timestamp():.3f}")
        for series in history
        for moment, value in series.points
    )
    text = folder / "history.txt"
    text.write_text("\n".join(row for _, row in rows) + "\n# EOF\n")
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"

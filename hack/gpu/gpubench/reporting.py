"""The result: tables of ratios in Markdown, everything in JSON, and what it was made with."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpubench.measuring import COMPARISONS, MODES, Comparison, FlipCost, Mode, Sample, ratio
from gpubench.servers import Patch, Server

PACKAGES = ("sglang", "sglang-kernel", "sgl-kernel", "torch", "triton", "flashinfer-python", "transformers")


def say(text: str) -> None:
    """Print one line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def pins() -> dict[str, str]:
    """Return versions of what was measured with, and the GPU."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        found["gpu"] = f"unknown ({error})"
    return found


@dataclass(frozen=True, kw_only=True)
class ServerNote:
    """One server of a backend: its flags, its memory, and how long it took to start."""

    backend: str
    name: str
    command: list[str]
    seconds_to_start: float | None
    memory_usage: dict[str, object]
    gpu_memory_mib: int | None
    off_path: object
    off_path_reason: object
    off_path_lines: list[str]


def note(server: Server, backend: str) -> ServerNote:
    """Ask a running server about itself."""
    state = server.client.internal_states()[0]
    patch = state.get("specpatch") or {}
    return ServerNote(
        backend=backend,
        name=server.kind.name,
        command=server.command,
        seconds_to_start=server.seconds_to_start,
        memory_usage=dict(state.get("memory_usage") or {}),
        gpu_memory_mib=server.gpu_memory_mib(),
        off_path=patch.get("off_path"),
        off_path_reason=patch.get("off_path_reason"),
        off_path_lines=server.off_path_lines(),
    )


@dataclass(kw_only=True)
class Report:
    """All that is known so far; written after each round, so that a run that is cut short leaves what it had."""

    arguments: dict[str, object]
    together: bool
    patch: Patch | None = None
    samples: list[Sample] = field(default_factory=list)
    flips: list[FlipCost] = field(default_factory=list)
    servers: list[ServerNote] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=pins)
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))

    def write(self, folder: Path) -> None:
        """Write `off-path.json` and `off-path.md`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "off-path.json").write_text(json.dumps(self.manifest(), indent=1))
        (folder / "off-path.md").write_text(self.markdown())

    def manifest(self) -> dict[str, object]:
        """Return everything, for JSON."""
        return {
            "date": self.date,
            "pins": self.pins,
            "patch_digest": self.patch.digest if self.patch else None,
            "arguments": self.arguments,
            "started_together": self.together,
            "servers": [vars(item) for item in self.servers],
            "samples": [item.manifest() for item in self.samples],
            "flips": [item.manifest() for item in self.flips],
            "failures": self.failures,
        }

    def markdown(self) -> str:
        """Return the tables."""
        lines = [f"Measured {self.date} with {', '.join(f'{name} {version}' for name, version in self.pins.items())}."]
        lines += [f"Engine patch {self.patch.digest[:12]}."] if self.patch else []
        lines += [
            "",
            "Ratios of rates: median of the rounds (lowest–highest).",
            "",
        ]
        lines += [*self._ratios(), "", "Output tokens per second, medians, end to end.", ""]
        lines += self._medians(lambda sample: sample.end_to_end)
        lines += ["", "Milliseconds beside decode steps, medians: prefill, and the way there and back.", ""]
        lines += self._medians(lambda sample: None if (took := sample.seconds_beside_decode) is None else 1000 * took)
        lines += ["", *self._servers()]
        if self.flips:
            lines += ["", "| backend | requests | one change of mode costs |", "|---|---|---|"]
            lines += [f"| {item.backend} | {item.requests} | {item.milliseconds:.1f} ms |" for item in self.flips]
        lines += ["", *(f"Not measured: {failure.splitlines()[0]}" for failure in self.failures)]
        return "\n".join(lines).rstrip() + "\n"

    def _places(self) -> list[tuple[str, int]]:
        return list(dict.fromkeys((item.backend, item.requests) for item in self.samples))

    def _ratios(self) -> Iterator[str]:
        heads = [f"{each.of.name} / {each.to.name}, {each.measure}" for each in COMPARISONS]
        yield f"| backend | requests | {' | '.join(heads)} |"
        yield "|---|---|" + "---|" * len(heads)
        for backend, requests in self._places():
            cells = [self._ratio(each, backend, requests) for each in COMPARISONS]
            yield f"| {backend} | {requests} | {' | '.join(cells)} |"

    def _ratio(self, compared: Comparison, backend: str, requests: int) -> str:
        found = ratio(self.samples, compared, backend=backend, requests=requests)
        return "–" if found is None else f"{found.median:.3f} ({found.lowest:.3f}–{found.highest:.3f})"

    def _medians(self, of: Callable[[Sample], float | None]) -> Iterator[str]:
        """Yield a table of one figure of the samples, by place and mode."""
        yield "| backend | requests | " + " | ".join(mode.name for mode in MODES) + " |"
        yield "|---|---|" + "---|" * len(MODES)
        for backend, requests in self._places():
            cells = (self._median(of, mode, backend, requests) for mode in MODES)
            yield f"| {backend} | {requests} | {' | '.join(cells)} |"

    def _median(self, of: Callable[[Sample], float | None], mode: Mode, backend: str, requests: int) -> str:
        wanted = (backend, mode.name, requests)
        found = (of(item) for item in self.samples if (item.backend, item.mode, item.requests) == wanted)
        known = [value for value in found if value is not None]
        return f"{statistics.median(known):.0f}" if known else "–"

    def _servers(self) -> Iterator[str]:
        started = "started together" if self.together else "started alone"
        yield f"| backend | server | off path | s to start ({started}) | GPU memory, MiB |"
        yield "|---|---|---|---|---|"
        for item in self.servers:
            seconds = "–" if item.seconds_to_start is None else f"{item.seconds_to_start:.0f}"
            path = " ".join(str(word) for word in (item.off_path, item.off_path_reason) if word) or "–"
            cells = (item.backend, item.name, path, seconds, str(item.gpu_memory_mib or "–"))
            yield "| " + " | ".join(cells) + " |"


def flags_in(report: Report) -> Sequence[str]:
    """Return each server's command line, for the log."""
    return [f"{item.backend} {item.name}: {' '.join(item.command)}" for item in report.servers]

"""How fast a server decodes while drafting is off, and what the patch costs while it is on: one table from one run.

    python3 hack/gpu/off_path_table.py                              # an 8B Llama without weights, all backends
    python3 hack/gpu/off_path_table.py --model org/target --draft-model org/eagle3 --backends fa3

Needs an NVIDIA GPU and an installed SGLang; nothing else beside this repository. For each attention backend it starts
a server without speculation, one with, as SGLang is installed, and some of the patched copy (a decode step in place of
a draft; SGLang's zero-step state; with triton, the short tile for verifies), measures them in turns, and writes
`off-path.md` and `off-path.json`.

With weights that are made up no draft is ever accepted, so a mean number of accepted tokens is simulated, alike for
all speculating servers; with --model they draft for real.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gpubench.client import ServerFault
from gpubench.measuring import OFF, Work, flip_cost, one_round, warm_up
from gpubench.models import DRAFT_VOCABULARY, Pair, dummy_pair
from gpubench.reporting import Report, flags_in, note, say
from gpubench.servers import (
    DECODE,
    KINDS,
    Kind,
    Options,
    Patch,
    Server,
    StartFailed,
    apply_patch,
    end_servers_with_this_process,
)

SPARE_TOKENS = 1.2
FLIP_REQUESTS = 16


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--backends", default="triton,flashinfer,fa3", help="attention backends (%(default)s)")
    made.add_argument("--servers", default=",".join(KINDS), help="kinds of servers (%(default)s)")
    made.add_argument("--requests", default="1,8,32,128", help="numbers of requests side by side (%(default)s)")
    made.add_argument("--rounds", type=int, default=3, help="rounds over all of it (%(default)s)")
    made.add_argument("--most-requests-rounds", type=int, default=0, help="further rounds of the largest number alone")
    made.add_argument("--prompt-tokens", type=int, default=128)
    made.add_argument("--new-tokens", type=int, default=256)
    made.add_argument("--model", help="target model; without it an 8B Llama whose weights are made up")
    made.add_argument("--draft-model", help="EAGLE-3 draft of --model")
    made.add_argument("--steps", type=int, default=3, help="tokens drafted one after the other (%(default)s)")
    made.add_argument("--accepted", type=float, default=2.4, help="simulated mean, without --model (%(default)s)")
    made.add_argument("--memory-gib", type=float, default=30, help="GPU memory that one server takes (%(default)s)")
    made.add_argument("--together", choices=("auto", "yes", "no"), default="auto", help="all servers at once")
    made.add_argument("--memory-fraction", type=float, default=0.85, help="SGLang's --mem-fraction-static")
    made.add_argument("--flip-seconds", type=float, default=0.1, help="time between two changes of mode (%(default)s)")
    made.add_argument("--start-seconds", type=float, default=600, help="time allowed for a start (%(default)s)")
    made.add_argument("--seconds", type=float, default=7200, help="begin no round beyond this (%(default)s)")
    made.add_argument("--server-arg", action="append", default=[], metavar="ARG", help="a further flag of all servers")
    made.add_argument("--work", type=Path, help="folder for models, logs and the patched copy; else a temporary one")
    made.add_argument("--out", type=Path, default=Path("off-path-result"), help="folder of the result (%(default)s)")
    options = made.parse_args(arguments)
    if bool(options.model) != bool(options.draft_model):
        made.error("--model and --draft-model go together")
    if unknown := set(options.servers.split(",")) - set(KINDS):
        made.error(f"--servers: {', '.join(sorted(unknown))} must be of {', '.join(KINDS)}")
    return options


def free_gib() -> float:
    """Return the first GPU's free memory."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    return float(listed.split()[0]) / 1024


class Run:
    """One run over all backends."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments = arguments
        self.folder = work
        self.kinds = [KINDS[name] for name in arguments.servers.split(",")]
        self.requests = [int(count) for count in arguments.requests.split(",")]
        self.last_round = arguments.rounds + arguments.most_requests_rounds - 1
        self.ends = time.monotonic() + arguments.seconds
        together = arguments.together == "yes" or (
            arguments.together == "auto" and free_gib() >= len(self.kinds) * arguments.memory_gib
        )
        shown = {name: str(value) for name, value in vars(arguments).items()}
        self.report = Report(arguments=dict(shown), together=together)
        self.patch: Patch | None = None
        given = arguments.model is not None
        self.models = Pair(arguments.model, arguments.draft_model, dummy=False) if given else dummy_pair(work)
        self.work = Work(
            prompt_tokens=arguments.prompt_tokens, new_tokens=arguments.new_tokens, vocabulary=DRAFT_VOCABULARY
        )

    def options(self) -> Options:
        """Return what all servers have in common."""
        most, one = max(self.requests), self.arguments.prompt_tokens + self.arguments.new_tokens
        variables = {} if self.arguments.model else {"SGLANG_SIMULATE_ACC_LEN": str(self.arguments.accepted)}
        return Options(
            models=self.models,
            steps=self.arguments.steps,
            max_requests=most,
            max_tokens=int(most * one * SPARE_TOKENS),
            memory_fraction=self.arguments.memory_fraction,
            flags=("--cuda-graph-max-bs-decode", str(most), *self.arguments.server_arg),
            variables=variables,
        )

    def go(self) -> int:
        """Measure everything; 0 when nothing failed."""
        if any(kind.patched for kind in self.kinds):
            self.patch = self.report.patch = apply_patch(self.folder / "patch")
            say(f"patched: {self.patch.digest[:12]}")
        groups = [self.kinds] if self.report.together else [[kind] for kind in self.kinds]
        for backend in self.arguments.backends.split(","):
            every = range(self.last_round + 1)
            for numbers in [every] if self.report.together else [[number] for number in every]:
                for kinds in groups:
                    able = [kind for kind in kinds if kind.backends is None or backend in kind.backends]
                    if able:
                        self._measure(backend, able, list(numbers))
        for line in flags_in(self.report):
            say(line)
        self.report.write(self.arguments.out)
        print(self.report.markdown())
        return 1 if self.report.failures else 0

    def _measure(self, backend: str, kinds: Sequence[Kind], rounds: Sequence[int]) -> None:
        """Start these servers, measure them for these rounds, end them."""
        if time.monotonic() > self.ends:
            self.report.failures.append(f"{backend}, {', '.join(kind.name for kind in kinds)}: no time left")
            return
        servers: dict[str, Server] = {}
        try:
            for kind in kinds:
                log = self.folder / f"{backend}-{kind.name}-{rounds[0]}.log"
                servers[kind.name] = Server(kind, backend, self.options(), log=log, patch=self.patch)
            deadline = time.monotonic() + self.arguments.start_seconds
            for server in servers.values():
                server.await_start(deadline)
                say(f"{backend} {server.kind.name}: ready after {server.seconds_to_start:.0f} s")
            self._rounds(backend, servers, rounds)
        except (StartFailed, ServerFault) as error:
            self.report.failures.append(f"{backend}: {error}")
            say(f"{backend}: {error}")
        finally:
            for server in servers.values():
                server.stop()
            self.report.write(self.arguments.out)

    def _rounds(self, backend: str, servers: dict[str, Server], rounds: Sequence[int]) -> None:
        warm_up(servers, self.work, self.requests)
        if rounds[0] == 0:
            self.report.servers += [note(server, backend) for server in servers.values()]
        for number in rounds:
            began = time.monotonic()
            requests = self.requests if number < self.arguments.rounds else [max(self.requests)]
            self.report.samples += one_round(
                servers, self.work, backend=backend, requests=requests, number=number, say=say
            )
            self.report.write(self.arguments.out)
            spent = time.monotonic() - began
            if number != rounds[-1] and time.monotonic() + spent > self.ends:
                self.report.failures.append(f"{backend}: rounds after {number}: no time left")
                break
        if OFF.server in servers and rounds[-1] == self.last_round:
            cost = flip_cost(
                servers[DECODE.name],
                self.work,
                backend=backend,
                requests=FLIP_REQUESTS,
                hold_seconds=self.arguments.flip_seconds,
            )
            say(f"{backend}: {cost.flips} changes of mode, {cost.milliseconds:.1f} ms each")
            self.report.flips.append(cost)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when everything was measured."""
    options = parsed(arguments)
    end_servers_with_this_process()
    with tempfile.TemporaryDirectory(prefix="off-path-") as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return Run(options, folder).go()


if __name__ == "__main__":
    sys.exit(main())

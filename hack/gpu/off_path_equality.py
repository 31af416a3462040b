"""Does a server say the same with drafting on, off, switched and crossed by the load, as one without speculation?

    python3 hack/gpu/off_path_equality.py                               # triton, float16
    python3 hack/gpu/off_path_equality.py --backends fa3 --dtype bfloat16

Needs an NVIDIA GPU and an installed SGLang. Models with random weights at the scale of trained ones are written first
(60 million parameters). A server without speculation answers greedily, then the patched one does: drafting always,
never, switched every few steps, and with a threshold that requests cross as they join and leave. Answers are compared
step by step, log-probabilities included (`gpubench.comparing`). As a control, the same prompts with another first
token must be found to be wrong, or outputs would not depend on what the test is about.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gpubench.client import Answer, Client, Prompt, ServerFault, random_prompts
from gpubench.comparing import Summary, summary
from gpubench.models import Pair
from gpubench.reporting import say
from gpubench.servers import (
    DECODE,
    KINDS,
    PLAIN,
    SHORT_TILE,
    ZERO_STEP,
    Kind,
    Options,
    Patch,
    Server,
    StartFailed,
    apply_patch,
    end_servers_with_this_process,
)

TOLERANCE = {"float16": 0.05, "bfloat16": 0.15}
"""Of natural log-probabilities: some times what one server was seen to differ from itself (0.007 and 0.046)."""
PATHS = {DECODE.name: "Decode", ZERO_STEP.name: "ZeroStep", SHORT_TILE.name: "Decode"}
"""Servers to test, and the off path of each."""
TOP = 5
MAX_REQUESTS = 32
JOIN_SECONDS = 0.4
"""About as long as one of the answers takes: some requests end while others join."""
IDLE_SECONDS = 0.5
CONTROL_FOUND = {"float16": 0.9, "bfloat16": 0.75}
"""Share of the control's answers that must be wrong: with bfloat16's tolerance some of them look like ties."""
CHECK_LENGTHS = "SGLANG_SPECPATCH_CHECK_LENGTHS"
_STEPS = re.compile(r'^sglang:spec_mode_steps_total\{[^}]*mode="(on|off)"[^}]*\} ([\d.e+]+)$', re.MULTILINE)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--backends", default="triton", help="attention backends (%(default)s)")
    made.add_argument("--dtype", choices=tuple(TOLERANCE), default="float16")
    made.add_argument("--prompts", type=int, default=24, help="number of requests (%(default)s)")
    made.add_argument("--new-tokens", type=int, default=96, help="tokens of the longest answer (%(default)s)")
    made.add_argument("--server", choices=tuple(PATHS), default=DECODE.name, help="kind of server (%(default)s)")
    made.add_argument("--check-lengths", action="store_true", help="compare lengths on host and device at each step")
    made.add_argument("--memory-fraction", type=float, default=0.5, help="SGLang's --mem-fraction-static (%(default)s)")
    made.add_argument("--start-seconds", type=float, default=600, help="time allowed for a start (%(default)s)")
    made.add_argument("--model", help="target model; without it one with random weights is made")
    made.add_argument("--draft-model", help="EAGLE-3 draft of --model")
    made.add_argument("--vocabulary", type=int, help="tokens of --model to make prompts of")
    made.add_argument("--server-arg", action="append", default=[], metavar="ARG", help="a further flag of both servers")
    made.add_argument("--work", type=Path, help="folder for models, logs and the patched copy; else a temporary one")
    made.add_argument("--out", type=Path, default=Path("off-path-result"), help="folder of the result (%(default)s)")
    options = made.parse_args(arguments)
    if len({bool(options.model), bool(options.draft_model), bool(options.vocabulary)}) > 1:
        made.error("--model, --draft-model and --vocabulary go together")
    return options


class Requests:
    """The requests of the test: prompts and answers of many lengths."""

    def __init__(self, count: int, longest: int, vocabulary: int) -> None:
        self.prompts = [
            prompt
            for number in range(count)
            for prompt in random_prompts(1, 5 + number * 257 // count, seed=number, vocabulary=vocabulary)
        ]
        self.lengths = [longest - (number % 4) * longest // 5 for number in range(count)]

    def altered(self) -> list[Prompt]:
        """The same prompts, each with another first token."""
        return [(prompt[0] % 1000 + 11, *prompt[1:]) for prompt in self.prompts]

    def ask(
        self, client: Client, prompts: Sequence[Prompt] | None = None, *, join_seconds: float = 0.0
    ) -> list[Answer]:
        """Send all requests side by side, spread over `join_seconds`; answers in their order."""

        def one(number: int) -> Answer:
            time.sleep(join_seconds * number / len(self.lengths))
            return client.generate((prompts or self.prompts)[number], self.lengths[number], top=TOP)

        with ThreadPoolExecutor(max_workers=len(self.lengths)) as pool:
            return list(pool.map(one, range(len(self.lengths))))


def mode_steps(client: Client) -> dict[str, float]:
    """Return the decode steps that the server counted, by mode; it publishes them when it is idle."""
    time.sleep(IDLE_SECONDS)
    found = {"on": 0.0, "off": 0.0}
    for mode, value in _STEPS.findall(client.ask("GET", "/metrics").decode()):
        found[mode] += float(value)
    return found


class Test:
    """The comparison on one attention backend."""

    def __init__(self, arguments: argparse.Namespace, requests: Requests, backend: str) -> None:
        self.backend = backend
        self.requests = requests
        self.tolerance = TOLERANCE[arguments.dtype]
        self.control_found = CONTROL_FOUND[arguments.dtype]
        self.crossing = max(2, arguments.prompts // 3)
        self.found: dict[str, Summary] = {}
        self.failures: list[str] = []
        self.notes: dict[str, object] = {}

    def run(self, plain: Client, patched: Client, asked_path: str) -> None:
        """Ask both servers in every way and keep what was found."""
        references = self.requests.ask(plain)
        self.found["reference again, joining one by one"] = self._against(references, plain, join=JOIN_SECONDS)
        state = patched.internal_states()[0]["specpatch"]
        self.notes |= {"off_path": state.get("off_path"), "off_path_reason": state.get("off_path_reason")}
        if state.get("off_path") != asked_path:
            self.failures.append(f"the server runs {state.get('off_path')}: {state.get('off_path_reason')}")
        self.notes["verify_tile"] = state.get("verify_tile")
        for name, threshold, wanted in (("on", 0, "on"), ("off", 1, "off"), ("on again", 0, "on")):
            patched.set_threshold(threshold)
            before = mode_steps(patched)
            answers = self.requests.ask(patched)
            self._keep(name, references, answers)
            self._check_modes(name, before, mode_steps(patched), {wanted})
        self._switched(references, patched)
        control = summary(references, self.requests.ask(plain, self.requests.altered()), self.tolerance)
        self.notes["control"] = str(control)
        if control.wrong < self.control_found * len(references):
            self.failures.append(f"control: another first token makes too little difference: {control}")

    def _switched(self, references: Sequence[Answer], patched: Client) -> None:
        before = mode_steps(patched)
        with patched.toggled((1, 0), 0.03) as moments:
            self._keep("switched every 30 ms", references, self.requests.ask(patched))
        self.notes["switches"] = len(moments)
        patched.set_threshold(self.crossing)
        between = mode_steps(patched)
        self._check_modes("switched", before, between, {"on", "off"})
        answers = self.requests.ask(patched, join_seconds=JOIN_SECONDS)
        self._keep(f"threshold {self.crossing}, joining and leaving", references, answers)
        self._check_modes("crossed", between, mode_steps(patched), {"on", "off"})

    def _against(self, references: Sequence[Answer], client: Client, *, join: float) -> Summary:
        return summary(references, self.requests.ask(client, join_seconds=join), self.tolerance)

    def _keep(self, name: str, references: Sequence[Answer], answers: Sequence[Answer]) -> None:
        found = self.found[name] = summary(references, answers, self.tolerance)
        steps = sum(answer.verify_steps for answer in answers)
        tokens = sum(len(answer.tokens) for answer in answers)
        self.notes[f"tokens a verify step, {name}"] = round(tokens / steps, 3) if steps else None
        if found.wrong:
            self.failures.append(f"{name}: {found}")

    def _check_modes(self, name: str, before: dict[str, float], after: dict[str, float], wanted: set[str]) -> None:
        """Make sure that the server decoded as it was told to: a test of the wrong mode proves nothing."""
        ran = {mode for mode in after if after[mode] > before[mode]}
        if not wanted <= ran or (wanted == {"off"} and "on" in ran):
            self.failures.append(f"{name}: steps ran {' and '.join(sorted(ran)) or 'uncounted'}")

    def report(self) -> dict[str, object]:
        """Return everything, for JSON."""
        found = {name: str(item) for name, item in self.found.items()}
        return {"backend": self.backend, "found": found, "notes": self.notes, "failures": self.failures}


def measured(arguments: argparse.Namespace, folder: Path, patch: Patch, models: Pair, vocabulary: int) -> list[Test]:
    """Run the test on each backend; one that can't be run is a failure of its own."""
    requests, tests = Requests(arguments.prompts, arguments.new_tokens, vocabulary), []
    patched = KINDS[arguments.server]
    variables = {CHECK_LENGTHS: "1"} if arguments.check_lengths else {}
    flags = ("--cuda-graph-max-bs-decode", str(MAX_REQUESTS), "--enable-fp32-lm-head", *arguments.server_arg)
    options = Options(
        models=models,
        steps=3,
        max_requests=MAX_REQUESTS,
        max_tokens=32_768,
        memory_fraction=arguments.memory_fraction,
        flags=flags,
        variables=variables,
    )
    for backend in arguments.backends.split(","):
        test = Test(arguments, requests, backend)
        tests.append(test)
        with contextlib.ExitStack() as stack:

            def started(kind: Kind, backend: str = backend, stack: contextlib.ExitStack = stack) -> Server:
                log = folder / f"equality-{backend}-{kind.name}.log"
                server = Server(kind, backend, options, log=log, patch=patch)
                stack.callback(server.stop)
                return server

            try:
                servers = [started(PLAIN), started(patched)]
                for server in servers:
                    server.await_start(time.monotonic() + arguments.start_seconds)
                    say(f"{backend} {server.kind.name}: ready after {server.seconds_to_start:.0f} s")
                test.run(servers[0].client, servers[1].client, PATHS[arguments.server])
                test.notes["off_path_lines"] = servers[1].off_path_lines()
            except (StartFailed, ServerFault) as error:
                test.failures.append(str(error))
        for line in (*(f"{name}: {item}" for name, item in test.found.items()), *test.notes.items(), *test.failures):
            say(f"{backend}: {line}")
    return tests


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when every answer was the reference's."""
    options = parsed(arguments)
    end_servers_with_this_process()
    from gpubench.randommodels import TARGET, write_pair

    with tempfile.TemporaryDirectory(prefix="off-path-") as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        patch = apply_patch(folder / "patch")
        if options.model:
            models = Pair(options.model, options.draft_model, dummy=False)
        else:
            models = write_pair(folder / f"random-{options.dtype}", options.dtype)
        say(f"patched ({patch.digest[:12]}), models there")
        tests = measured(options, folder, patch, models, options.vocabulary or TARGET.vocabulary)
    options.out.mkdir(parents=True, exist_ok=True)
    result = options.out / f"equality-{options.dtype}-{'-'.join(test.backend for test in tests)}.json"
    result.write_text(json.dumps({"patch_digest": patch.digest, "tests": [test.report() for test in tests]}, indent=1))
    return 1 if any(test.failures for test in tests) else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a test says to a server, and what it gets back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import requests
from prometheus_client.parser import text_string_to_metric_families

REQUEST_SECONDS = 300
THRESHOLD = "speculative_disable_batch_threshold"
PROBE_PERMILLE = "speculative_probe_permille"
ADMIN_PATHS = ("/set_internal_state", "/abort_request", "/flush_cache")
"""Paths that take the admin key where a server has one."""


class EngineFailed(AssertionError):
    """A server did not start or did not answer; the text ends with the end of its log."""


@dataclass(frozen=True)
class Prompt:
    """One request: token ids, number of tokens to say, SGLang's sampling parameters."""

    tokens: tuple[int, ...]
    new_tokens: int = 40
    sampling: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    delay_seconds: float = 0.0
    """When to send it, counted from the start of the whole list."""
    name: str | None = None
    """By which it can be aborted."""

    def body(self) -> dict[str, Any]:
        """Return the request as SGLang reads it: greedy, to the last token, unless `sampling` says otherwise.

        Told to ignore the end token, SGLang ignores stop tokens too.
        """
        ignored = "stop_token_ids" not in self.sampling
        fixed = {"temperature": 0, "max_new_tokens": self.new_tokens, "ignore_eos": ignored}
        body: dict[str, Any] = {"input_ids": list(self.tokens), "sampling_params": {**fixed, **self.sampling}}
        if self.name is not None:
            body["rid"] = self.name
        return {**body, "return_logprob": True} if self.logprobs else body


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    tokens: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[float, ...]
    cached_tokens: int
    verify_steps: int
    """Decode steps on a speculating server; 0 without speculation."""

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Self:
        """Read SGLang's answer to /generate."""
        meta = answer["meta_info"]
        return cls(
            tokens=tuple(answer["output_ids"]),
            text=answer.get("text") or "",
            finish=meta["finish_reason"]["type"],
            logprobs=tuple(entry[0] for entry in meta.get("output_token_logprobs") or ()),
            cached_tokens=meta["cached_tokens"],
            verify_steps=meta.get("spec_verify_ct") or 0,
        )


def acceptance(answers: Sequence[Answer]) -> float:
    """Return the mean number of tokens of a decode step; the first token comes from the prefill."""
    tokens = sum(len(answer.tokens) - 1 for answer in answers)
    return tokens / sum(answer.verify_steps for answer in answers)


class EngineClient:
    """Talks to one server."""

    def __init__(self, api_key: str | None = None, admin_key: str | None = None) -> None:
        self._keys = {False: api_key, True: admin_key or api_key}
        self._pool = ThreadPoolExecutor(64)
        self.port = 0

    def generate(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Send prompts at the same time, or after their delays, and return the answers in their order."""
        return [future.result(REQUEST_SECONDS) for future in self.begin(prompts)]

    def begin(self, prompts: Sequence[Prompt]) -> list[Future[Answer]]:
        """Send prompts and return at once."""
        return [self._pool.submit(self._generate, prompt) for prompt in prompts]

    def _generate(self, prompt: Prompt) -> Answer:
        time.sleep(prompt.delay_seconds)
        return Answer.of(self.post("/generate", prompt.body()).json())

    def abort(self, name: str) -> None:
        """End a request by its name."""
        self.post("/abort_request", {"rid": name})

    def flush(self) -> None:
        """Forget all cached prefixes; waits until the server is idle, which it is one turn after its last answer."""
        end = time.monotonic() + REQUEST_SECONDS
        while self.send("POST", "/flush_cache", {}).status_code != 200:
            if time.monotonic() > end:
                raise EngineFailed(f"not idle within {REQUEST_SECONDS} s\n{self.log_end()}")
            time.sleep(0.1)

    def set_threshold(self, value: int) -> None:
        """Change the threshold while serving."""
        self.update({THRESHOLD: value})

    def update(self, values: Mapping[str, Any]) -> None:
        """Change live settings; raises EngineFailed when the server does not take them."""
        self.checked(self.try_update(values))
        refused = [state for state in self.internal_states() if not values.items() <= state.items()]
        if refused:
            raise EngineFailed(f"{values} not taken, in force: {[state.get(THRESHOLD) for state in refused]}")

    def try_update(self, values: object, key: str | None = None) -> requests.Response:
        """Send a live update and return the answer, whatever it is."""
        return self.send("POST", "/set_internal_state", {"server_args": values}, key)

    def internal_states(self) -> list[dict[str, Any]]:
        """Return the state of each scheduler that the server asks; takes one turn of the scheduler."""
        states: list[dict[str, Any]] = self.server_info()["internal_states"]
        return states

    def server_info(self) -> dict[str, Any]:
        """Return what the server says about itself."""
        info: dict[str, Any] = self.checked(self.send("GET", "/server_info")).json()
        return info

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the samples of a metric by their labels."""
        text = self.checked(self.send("GET", "/metrics")).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {tuple(sorted(sample.labels.items())): sample.value for sample in samples if sample.name == name}

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that carry these labels; 0 when there are none."""
        return sum(value for found, value in self.samples(name).items() if labels.items() <= dict(found).items())

    @contextlib.contextmanager
    def toggled(self, values: Sequence[int] = (0, 1), hold_turns: int = 3) -> Iterator[list[int]]:
        """Change the threshold again and again meanwhile; yields the list of values set so far.

        A scheduler takes one control request a turn: each value stays for about `hold_turns` decode steps.
        """
        done: list[int] = []
        going = True

        def toggle() -> None:
            while going:
                value = values[len(done) % len(values)]
                self.set_threshold(value)
                done.append(value)
                for _ in range(hold_turns - 2):
                    self.internal_states()

        task = self._pool.submit(toggle)
        try:
            yield done
        finally:
            going = False
            task.result(REQUEST_SECONDS)

    def post(self, path: str, body: object) -> requests.Response:
        """Send a request; raises EngineFailed unless it is answered with 200."""
        return self.checked(self.send("POST", path, body))

    def send(self, method: str, path: str, body: object = None, key: str | None = None) -> requests.Response:
        """Send a request, with the key of the path unless another is given, and return the answer, whatever it is."""
        key = self._keys[path in ADMIN_PATHS] if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        return requests.request(method, url, json=body, headers=headers, timeout=REQUEST_SECONDS)

    def checked(self, response: requests.Response) -> requests.Response:
        """Return an answer; raises EngineFailed unless it is 200."""
        if response.status_code != 200:
            raise EngineFailed(f"{response.url}: {response.status_code} {response.text[:500]}\n{self.log_end()}")
        return response

    def log_end(self, lines: int = 40) -> str:
        """Return the last lines that the server has printed."""
        return "\n".join(self.log().splitlines()[-lines:])

    def log(self) -> str:
        """Return what the server has printed."""
        raise NotImplementedError

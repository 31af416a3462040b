"""One SGLang server on this machine, asked over HTTP: requests side by side, live settings, its own report."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

THRESHOLD = "speculative_disable_batch_threshold"
REQUEST_SECONDS = 300.0
READ_BACK_SECONDS = 10.0

Prompt = tuple[int, ...]


class ServerFault(RuntimeError):
    """A server answered otherwise than it should, or not at all."""


@dataclass(frozen=True)
class Step:
    """One output token: its log-probability, and those of the most probable tokens, by token."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class Answer:
    """One finished request. `verify_steps` is 0 without speculation; `steps` is empty unless asked for."""

    tokens: tuple[int, ...]
    verify_steps: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Load:
    """What a number of requests side by side gave together."""

    tokens: int
    seconds: float
    verify_steps: int

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, prefill included."""
        return self.tokens / self.seconds


class Client:
    """Talks to the server at this port of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, method: str, path: str, body: object = None, *, timeout: float = REQUEST_SECONDS) -> bytes:
        """Make one request.

        Raises:
            ServerFault: no connection, no answer in time, or another status than 200.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerFault(f"{method} {path} on port {self._port}: {error!r}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ServerFault(f"{method} {path}: HTTP {response.status}: {content[:300].decode(errors='replace')}")
        return content

    def healthy(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            self.ask("GET", "/health", timeout=5)
        except ServerFault:
            return False
        return True

    def generate(self, prompt: Prompt, new_tokens: int, *, top: int = 0) -> Answer:
        """Generate greedily, whatever token ends a text; with `top` > 0, that many log-probabilities a step."""
        body: dict[str, object] = {
            "input_ids": list(prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        }
        if top:
            body |= {"return_logprob": True, "top_logprobs_num": top}
        answer = json.loads(self.ask("POST", "/generate", body))
        meta = answer["meta_info"]
        return Answer(
            tokens=tuple(answer["output_ids"]),
            verify_steps=int(meta.get("spec_verify_ct") or 0),
            steps=_steps(meta) if top else (),
        )

    def load(self, prompts: Sequence[Prompt], new_tokens: int) -> Load:
        """Send all prompts at once and wait for all."""
        with ThreadPoolExecutor(max_workers=len(prompts)) as pool:
            began = time.perf_counter()
            answers = list(pool.map(lambda prompt: self.generate(prompt, new_tokens), prompts))
            seconds = time.perf_counter() - began
        return Load(
            tokens=sum(len(answer.tokens) for answer in answers),
            seconds=seconds,
            verify_steps=sum(answer.verify_steps for answer in answers),
        )

    def set_threshold(self, batch_size: int) -> None:
        """Change the threshold, and wait until it is read back from every rank.

        Raises:
            ServerFault: it is not.
        """
        self.ask("POST", "/set_internal_state", {"server_args": {THRESHOLD: batch_size}})
        deadline = time.monotonic() + READ_BACK_SECONDS
        while any(state.get(THRESHOLD) != batch_size for state in self.internal_states()):
            if time.monotonic() > deadline:
                raise ServerFault(f"the threshold {batch_size} was not taken")
            time.sleep(0.05)

    def internal_states(self) -> list[dict[str, Any]]:
        """What each scheduler says of itself."""
        states: list[dict[str, Any]] = json.loads(self.ask("GET", "/server_info"))["internal_states"]
        return states

    @contextmanager
    def toggled(self, values: Sequence[int], seconds: float) -> Iterator[list[float]]:
        """Change the threshold through `values`, over and over, each held for `seconds`.

        Yields the moments (of the performance counter) at which a change was answered; the list grows meanwhile.
        """
        ended, moments = threading.Event(), list[float]()

        def turn() -> None:
            while True:
                for value in values:
                    self.ask("POST", "/set_internal_state", {"server_args": {THRESHOLD: value}})
                    moments.append(time.perf_counter())
                    if ended.wait(seconds):
                        return

        thread = threading.Thread(target=turn, daemon=True)
        thread.start()
        try:
            yield moments
        finally:
            ended.set()
            thread.join(REQUEST_SECONDS)


def _steps(meta: dict[str, Any]) -> tuple[Step, ...]:
    chosen, tops = meta["output_token_logprobs"], meta["output_top_logprobs"]
    return tuple(
        Step(token=entry[1], logprob=entry[0], top={item[1]: item[0] for item in top or ()})
        for entry, top in zip(chosen, tops, strict=True)
    )


def random_prompts(count: int, tokens: int, *, seed: int, vocabulary: int) -> list[Prompt]:
    """Prompts of random tokens, the same for a seed, so that no prompt shares its beginning with another."""
    draws = random.Random(seed)
    return [tuple(draws.randrange(10, vocabulary) for _ in range(tokens)) for _ in range(count)]

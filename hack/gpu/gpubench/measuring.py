"""The measurement: what each mode of decoding yields at each number of requests, in rounds that take turns.

A mode is a server and the threshold it is given. In one round every mode is measured at every number of requests, the
order shifted by one with each round, so that what drifts (clocks, temperature) hits all alike. Ratios are formed
within a round, and their median over the rounds is what is reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum

from gpubench.client import random_prompts
from gpubench.servers import DECODE, PLAIN, SHORT_TILE, UNPATCHED, ZERO_STEP, Server

ALWAYS, NEVER = 0, 1
"""Thresholds: draft at every batch size, and at none."""
WARM_UP_TOKENS = 16
LOG_SECONDS = 0.1
"""The server writes its log a moment after its answers."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Mode:
    """A way of decoding: which server, and the threshold it is set to. None: the server has no threshold."""

    name: str
    server: str
    threshold: int | None


NONE = Mode("no speculation", PLAIN.name, None)
ALWAYS_ON = Mode("unpatched, speculating", UNPATCHED.name, None)
ON = Mode("on", DECODE.name, ALWAYS)
OFF = Mode("off (Decode)", DECODE.name, NEVER)
OFF_ZERO_STEP = Mode("off (ZeroStep)", ZERO_STEP.name, NEVER)
ON_SHORT_TILE = Mode("on (16x128)", SHORT_TILE.name, ALWAYS)
MODES = (NONE, ALWAYS_ON, ON, OFF, OFF_ZERO_STEP, ON_SHORT_TILE)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement: `requests` side by side, each of `new_tokens`, of which a prefill makes the first.

    Rates in output tokens per second; `decode` leaves prefill out, None where no log tells it.
    """

    backend: str
    mode: str
    requests: int
    new_tokens: int
    round: int
    end_to_end: float
    decode: float | None
    tokens_per_verify: float | None

    @property
    def verify_steps(self) -> float | None:
        """Verify steps per second, all requests together: a rate that chance in what is accepted doesn't change."""
        return None if self.decode is None or self.tokens_per_verify is None else self.decode / self.tokens_per_verify

    @property
    def seconds_beside_decode(self) -> float | None:
        """What the load took besides its decode steps at their usual rate: prefill, and the way there and back."""
        if self.decode is None:
            return None
        return self.requests * (self.new_tokens / self.end_to_end - (self.new_tokens - 1) / self.decode)

    def manifest(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return asdict(self)


class Measure(StrEnum):
    """Which rate of a sample is compared."""

    END_TO_END = "end to end"
    DECODE = "decode"
    VERIFY_STEPS = "verify steps"

    def of(self, sample: Sample) -> float | None:
        """Return that rate, where it is known."""
        rates = {
            Measure.END_TO_END: sample.end_to_end,
            Measure.DECODE: sample.decode,
            Measure.VERIFY_STEPS: sample.verify_steps,
        }
        return rates[self]


@dataclass(frozen=True)
class Comparison:
    """The rate of one mode over that of another."""

    of: Mode
    to: Mode
    measure: Measure


COMPARISONS = (
    Comparison(OFF, NONE, Measure.END_TO_END),
    Comparison(OFF, NONE, Measure.DECODE),
    Comparison(OFF_ZERO_STEP, NONE, Measure.END_TO_END),
    Comparison(OFF_ZERO_STEP, NONE, Measure.DECODE),
    Comparison(ON, ALWAYS_ON, Measure.VERIFY_STEPS),
    Comparison(ON, NONE, Measure.END_TO_END),
    Comparison(ON_SHORT_TILE, ON, Measure.VERIFY_STEPS),
)
"""What is reported."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What each measurement sends: `requests` side by side, each of so many tokens."""

    prompt_tokens: int
    new_tokens: int
    vocabulary: int


def modes_of(servers: Mapping[str, Server]) -> list[Mode]:
    """Return the modes that these servers can be measured in."""
    return [mode for mode in MODES if mode.server in servers]


def enter(server: Server, mode: Mode) -> None:
    """Put a server into a mode."""
    if mode.threshold is not None:
        server.client.set_threshold(mode.threshold)


def measure(server: Server, mode: Mode, work: Work, *, backend: str, requests: int, number: int) -> Sample:
    """Make one measurement, after a short load in the same mode."""
    enter(server, mode)
    seed = 1000 * requests + number
    prompts = random_prompts(requests, work.prompt_tokens, seed=seed, vocabulary=work.vocabulary)
    server.client.load(random_prompts(min(requests, 4), 8, seed=seed + 1, vocabulary=work.vocabulary), WARM_UP_TOKENS)
    time.sleep(LOG_SECONDS)
    position = server.log_position()
    load = server.client.load(prompts, work.new_tokens)
    time.sleep(LOG_SECONDS)
    rates = server.decode_rates(position, requests)
    return Sample(
        backend=backend,
        mode=mode.name,
        requests=requests,
        new_tokens=work.new_tokens,
        round=number,
        end_to_end=load.tokens_per_second,
        decode=statistics.fmean(rates) if rates else None,
        tokens_per_verify=load.tokens / load.verify_steps if load.verify_steps else None,
    )


def warm_up(servers: Mapping[str, Server], work: Work, requests: Sequence[int]) -> None:
    """Let every mode run at every size once: first calls compile kernels."""
    for mode in modes_of(servers):
        enter(servers[mode.server], mode)
        for count in requests:
            prompts = random_prompts(count, work.prompt_tokens, seed=count, vocabulary=work.vocabulary)
            servers[mode.server].client.load(prompts, WARM_UP_TOKENS)


def one_round(
    servers: Mapping[str, Server], work: Work, *, backend: str, requests: Sequence[int], number: int, say: Say
) -> list[Sample]:
    """Measure every mode at every number of requests once; the servers that have no turn stand still."""
    modes, samples = modes_of(servers), []
    for count in requests:
        for place in range(len(modes)):
            mode = modes[(place + number) % len(modes)]
            with ExitStack() as stack:
                for server in servers.values():
                    if server is not servers[mode.server]:
                        stack.enter_context(server.paused())
                sample = measure(servers[mode.server], mode, work, backend=backend, requests=count, number=number)
            decode = "" if sample.decode is None else f", decode {sample.decode:.0f}"
            say(f"{backend} round {number}, {count} requests, {mode.name}: {sample.end_to_end:.0f} tok/s{decode}")
            samples.append(sample)
    return samples


@dataclass(frozen=True, kw_only=True)
class FlipCost:
    """What one change between drafting and not costs, beside the time in either mode."""

    backend: str
    requests: int
    flips: int
    milliseconds: float

    def manifest(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return asdict(self)


def flip_cost(server: Server, work: Work, *, backend: str, requests: int, hold_seconds: float) -> FlipCost:
    """Send the same load with drafting, without, and with both in turns, and compare.

    With T_on and T_off the times of the load in either mode, a run that is off for the share f of its time T does
    T * ((1 - f) / T_on + f / T_off) loads; what exceeds one load was lost to the flips.
    """
    prompts = random_prompts(requests, work.prompt_tokens, seed=7, vocabulary=work.vocabulary)
    client = server.client
    seconds: dict[str, list[float]] = {}
    for mode in (ON, OFF, ON, OFF):
        enter(server, mode)
        seconds.setdefault(mode.name, []).append(client.load(prompts, work.new_tokens).seconds)
    on, off = min(seconds[ON.name]), min(seconds[OFF.name])
    began = time.perf_counter()
    with client.toggled((NEVER, ALWAYS), hold_seconds) as moments:
        mixed = client.load(prompts, work.new_tokens).seconds
    flips = [moment for moment in moments if moment < began + mixed]
    share = off_share(flips, began, began + mixed)
    speed = (1 - share) / on + share / off
    lost = mixed - 1 / speed
    return FlipCost(backend=backend, requests=requests, flips=len(flips), milliseconds=1000 * lost / max(1, len(flips)))


def off_share(flips: Sequence[float], began: float, ended: float) -> float:
    """Return the share of a time that lay behind odd flips: the first one switches drafting off, the next one on."""
    off = 0.0
    for index in range(0, len(flips), 2):
        off += (flips[index + 1] if index + 1 < len(flips) else ended) - flips[index]
    return off / (ended - began)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Two modes' rates at one number of requests, compared in each round."""

    median: float
    lowest: float
    highest: float
    rounds: int


def ratio(samples: Sequence[Sample], compared: Comparison, *, backend: str, requests: int) -> Ratio | None:
    """Compare two modes round by round; None where a round with both is missing."""

    def rates(mode: Mode) -> dict[int, float]:
        found = (item for item in samples if (item.backend, item.mode, item.requests) == (backend, mode.name, requests))
        values = {item.round: compared.measure.of(item) for item in found}
        return {number: value for number, value in values.items() if value is not None}

    above, below = rates(compared.of), rates(compared.to)
    ratios = [above[number] / below[number] for number in sorted(above.keys() & below.keys())]
    if not ratios:
        return None
    return Ratio(median=statistics.median(ratios), lowest=min(ratios), highest=max(ratios), rounds=len(ratios))

"""The ten workloads: what load does to a tuner, each in the smallest form that shows it.

Closed loops state their clients. Open loops state the batch size to aim at: the rate is the one at which a server that
is always in the better mode has that many requests running, so that the same workload fits a slow curve and a fast one.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from sglang_operator.simulate.costs import Costs
from sglang_operator.simulate.traffic import (
    ClosedLoop,
    OpenLoop,
    Prompts,
    RequestMaker,
    Source,
    Steps,
    constant,
    poisson,
)

Window = tuple[float, float]
"""From one second to another."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong, and when, in seconds."""

    scrapes_lost: tuple[Window, ...] = ()
    updates_refused: tuple[Window, ...] = ()
    relabelled: tuple[Window, ...] = ()
    """Prometheus stores the series under another pod name."""
    server_restarts: tuple[float, ...] = ()
    """The server dies with all requests, comes back with its counters at zero, the last decided threshold and no
    probes."""
    operator_restarts: tuple[float, ...] = ()
    """The operator forgets all but the decision in force."""


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """So many requests at once, every so many seconds."""

    every_seconds: float
    requests: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One scenario of `seconds`. Either `clients` (closed loop) or `aims` (open loop, mean batch sizes) is set."""

    name: str
    title: str
    seconds: float
    clients: Steps[int] | None = None
    aims: Steps[float] | None = None
    bursts: Bursts | None = None
    prompts: Prompts = field(default=Prompts())
    drifts: tuple[float, ...] = ()
    """Moments at which the crossover jumps."""
    faults: Faults = field(default=Faults())
    scrape_seconds: float = 15
    scrape_jitter: float = 0.1
    """Each scrape comes up to this part of the period sooner or later."""

    def source(self, costs: Costs, seed: int) -> Source:
        """The requests, for a server of that curve."""
        maker = RequestMaker(self.prompts, seed)
        if self.clients is not None:
            return ClosedLoop(self.clients, maker)
        assert self.aims is not None
        rate = Steps(tuple((second, _rate(costs, self.prompts, aim)) for second, aim in self.aims.points))
        moments = list(poisson(rate, self.seconds, seed))
        if self.bursts:
            count = int(self.seconds / self.bursts.every_seconds)
            at = [(index + 0.5) * self.bursts.every_seconds for index in range(count)]
            moments += [moment for moment in at for _ in range(self.bursts.requests)]
        return OpenLoop(iter(sorted(moments)), maker)


def workload(name: str) -> Workload:
    """The named workload. Raises ValueError that lists the names if there is none of that name."""
    try:
        return _WORKLOADS[name.upper()]
    except KeyError:
        raise ValueError(f"there is no workload {name!r}; known workloads: {', '.join(_WORKLOADS)}") from None


def workload_names() -> tuple[str, ...]:
    """W1 to W10."""
    return tuple(_WORKLOADS)


def _rate(costs: Costs, prompts: Prompts, aim: float) -> float:
    """Requests/s with which `aim` requests run in the better mode.

    A request takes its output tokens' share of the decode time, and its own prefill:
    1 / rate = output tokens / tokens per second at that batch size + prefill seconds.
    """
    batch = max(1, round(aim))
    accept = sum(costs.accept_length(factor) for factor in prompts.factors) / len(prompts.factors)
    seconds = costs.step_seconds(batch, 0)
    decode = prompts.output_tokens / (batch * max(accept / seconds.on, 1 / seconds.off))
    return (aim / batch) / (decode + costs.curve.prefill_seconds(prompts.prompt_tokens))


def _stairs(*values: int, each_seconds: float) -> Steps[int]:
    return Steps(tuple((index * each_seconds, value) for index, value in enumerate(values)))


def _ramps(low: int, high: int, *, each_seconds: float, count: int) -> Steps[int]:
    """Up and down `count` times, evenly in the logarithm, a new value every ten seconds."""

    def at(second: float) -> int:
        way = 1 - abs((second / each_seconds) % 2 - 1)
        return round(low * math.exp(way * math.log(high / low)))

    return Steps(tuple((float(second), at(second)) for second in range(0, int(2 * count * each_seconds), 10)))


def _day(seconds: float) -> Steps[float]:
    """A night, a morning that rises, a busy afternoon with a dent at noon, an evening that falls: 24 h in `seconds`."""
    hours = ((0, 4), (6, 3), (8, 16), (10, 60), (12, 44), (14, 80), (17, 96), (20, 40), (22, 12), (24, 4))

    def at(hour: float) -> float:
        index = max(i for i, (h, _) in enumerate(hours[:-1]) if h <= hour)
        (left, low), (right, high) = hours[index], hours[index + 1]
        return low + (high - low) * (hour - left) / (right - left)

    return Steps(tuple((part / 96 * seconds, at(part / 4)) for part in range(96)))


def _wander(low: int, high: int, *, seconds: float, each_seconds: float) -> Steps[int]:
    """A walk between two sizes, evenly in the logarithm, with a new value every so often; always the same walk."""
    draws = random.Random("wander")
    place, values = 0.5, []
    for second in range(0, int(seconds), int(each_seconds)):
        place = min(1.0, max(0.0, place + draws.uniform(-0.35, 0.35)))
        values.append((float(second), round(math.exp(math.log(low) + place * math.log(high / low)))))
    return Steps(tuple(values))


def _context_drift(first: int, last: int, *, begin: float, end: float) -> Steps[int]:
    """From `first` to `last` tokens, evenly in the logarithm, in 40 steps from second `begin` to second `end`."""
    points = [(begin + (end - begin) * i / 40, round(first * (last / first) ** (i / 40))) for i in range(41)]
    return Steps(((0.0, first), *points))


_CLASSES = (0.6, 1.0, 1.3)
"""Prose, a mix, and code."""

_ALL = (
    Workload(
        name="W1",
        title="steps of load, 1 → 64 → 1 clients",
        seconds=1800,
        clients=_stairs(1, 64, 1, 64, 1, each_seconds=360),
    ),
    Workload(
        name="W2",
        title="ramps, 1 → 128 → 1 clients, twice",
        seconds=2400,
        clients=_ramps(1, 128, each_seconds=600, count=2),
    ),
    Workload(
        name="W3",
        title="a day in 40 minutes, Poisson arrivals",
        seconds=2400,
        aims=_day(2400),
    ),
    Workload(
        name="W4",
        title="bursts of 48 short requests every 40 s, scraped every 30 s",
        seconds=2400,
        aims=constant(3.0),
        bursts=Bursts(every_seconds=40, requests=48),
        prompts=Prompts(output_tokens=96),
        scrape_seconds=30,
    ),
    Workload(
        name="W5",
        title="acceptance drifts at 32 clients: × 1, × 0.6, × 1.3, × 1",
        seconds=2880,
        clients=constant(32),
        prompts=Prompts(
            factors=_CLASSES,
            shares=Steps(
                (
                    (0.0, (0.0, 1.0, 0.0)),
                    (720.0, (1.0, 0.0, 0.0)),
                    (1440.0, (0.0, 0.0, 1.0)),
                    (2160.0, (0.0, 1.0, 0.0)),
                )
            ),
        ),
        drifts=(720.0, 1440.0, 2160.0),
    ),
    Workload(
        name="W6",
        title="context drifts from 0.5k to 16k tokens at 48 clients",
        seconds=2400,
        clients=constant(48),
        prompts=Prompts(context_tokens=_context_drift(512, 16_384, begin=300, end=1800)),
    ),
    Workload(
        name="W7",
        title="prefill-heavy: 4k prompt, 160 output tokens, 4 → 48 → 4 clients",
        seconds=1800,
        clients=_stairs(4, 48, 4, each_seconds=600),
        prompts=Prompts(prompt_tokens=4096, output_tokens=160),
    ),
    Workload(
        name="W8",
        title="one side for an hour: 6 clients, then 96",
        seconds=4500,
        clients=Steps(((0.0, 6), (3600.0, 96))),
        scrape_seconds=30,
    ),
    Workload(
        name="W9",
        title="faults: lost scrapes, restarts, refused updates, relabelled metrics, at 8 and 64 clients",
        seconds=3600,
        clients=_stairs(8, 64, 8, 64, 8, 64, each_seconds=600),
        faults=Faults(
            scrapes_lost=((660, 900),),
            updates_refused=((1200, 1320), (1860, 1980)),
            relabelled=((2460, 2760),),
            server_restarts=(1500.0, 3120.0),
            operator_restarts=(420.0, 2100.0),
        ),
        scrape_seconds=10,
        scrape_jitter=0.3,
    ),
    Workload(
        name="W10",
        title="load that wanders from 1 to 128 clients",
        seconds=3600,
        clients=_wander(1, 128, seconds=3600, each_seconds=45),
        scrape_seconds=5,
    ),
)
_WORKLOADS = {item.name: item for item in _ALL}

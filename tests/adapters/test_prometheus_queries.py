"""The queries against a real Prometheus that holds a written history: exact numbers from the whole query path."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import prometheus
import pytest

from sglang_operator.adapters.prometheus import PrometheusMetrics
from sglang_operator.settings import Settings
from sglang_operator.tuning.samples import (
    PROBES,
    SPARSE,
    WINDOWS,
    MetricsSnapshot,
    Mode,
    ModeSample,
    Window,
)

# The first use on a machine unpacks Prometheus into the cache.
pytestmark = pytest.mark.timeout(300)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP_SECONDS = 5
HISTORY_SECONDS = 1200
STEPS_PER_SECOND = 40
BATCH = 10


class FixedClock:
    """A clock that stands at NOW; only its monotonic side does not matter here."""

    def now(self) -> datetime:
        return NOW

    def monotonic_seconds(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def counter(
    name: str,
    labels: Mapping[str, str],
    per_second: float,
    *,
    first_seconds: int = -HISTORY_SECONDS,
    last_seconds: int = 0,
    reset_seconds: int | None = None,
) -> prometheus.Samples:
    """A counter that grows steadily, sampled between two times (seconds from NOW), restarting at zero once if told."""
    points = []
    for at in range(first_seconds, last_seconds + 1, STEP_SECONDS):
        since = reset_seconds if reset_seconds is not None and at >= reset_seconds else -2 * HISTORY_SECONDS
        points.append((NOW + timedelta(seconds=at), per_second * (at - since)))
    return prometheus.Samples(name=name, labels=labels, points=tuple(points))


def constant(name: str, labels: Mapping[str, str], value: float, *, last_seconds: int = 0) -> prometheus.Samples:
    moments = range(-HISTORY_SECONDS, last_seconds + 1, STEP_SECONDS)
    points = tuple((NOW + timedelta(seconds=at), value) for at in moments)
    return prometheus.Samples(name=name, labels=labels, points=points)


def pod(
    name: str,
    *,
    spelling: str = "sglang:",
    namespace: str = "team",
    mode: str = "on",
    bucket: str = "9-12",
    running: float = 10,
    tokens_per_second: float = 1000,
    busy: float = 0.8,
    last_seconds: int = 0,
    reset_seconds: int | None = None,
    extra: Mapping[str, str] | None = None,
) -> list[prometheus.Samples]:
    """All series of one scrape target: `busy` seconds of counted decoding a second, at a rate of tokens a second."""
    labels = {"namespace": namespace, "pod": name, **(extra or {})}
    by_mode = {**labels, "mode": mode, "batch_size": bucket}
    growth = {
        "spec_mode_steps_total": STEPS_PER_SECOND * busy,
        "spec_mode_requests_total": BATCH * STEPS_PER_SECOND * busy,
        "spec_mode_tokens_total": tokens_per_second * busy,
        "spec_mode_seconds_total": busy,
        "spec_mode_seconds_squared_total": busy / STEPS_PER_SECOND,
        "spec_probe_steps_total": 0.1,
    }
    return [
        *(
            counter(f"{spelling}{metric}", by_mode, each, last_seconds=last_seconds, reset_seconds=reset_seconds)
            for metric, each in growth.items()
        ),
        constant(f"{spelling}spec_disable_batch_threshold", labels, 32, last_seconds=last_seconds),
        constant(f"{spelling}num_running_reqs", labels, running, last_seconds=last_seconds),
        constant(f"{spelling}num_queue_reqs", labels, running + 1, last_seconds=last_seconds),
    ]


def cluster() -> list[prometheus.Samples]:
    ranks = [pod("tensor", extra={"tp_rank": str(rank)}, running=12) for rank in range(8)]
    replicas = [pod("scraped-twice", extra={"prometheus_replica": replica}, running=7) for replica in "ab"]
    batches = [pod("data", extra={"dp_rank": str(rank)}, running=5, tokens_per_second=500) for rank in range(2)]
    jobs = [pod("two-jobs", extra={"job": job}, running=9) for job in ("pods", "podmonitor")]
    return [
        *pod("colon"),
        *pod("underscore", spelling="sglang_", mode="off", bucket="257+"),
        *pod("both"),
        *pod("both", spelling="sglang_"),
        *(series for group in (*ranks, *replicas, *batches, *jobs) for series in group),
        *pod("restarted", reset_seconds=-100),
        *pod("stopped", last_seconds=-120),
        *pod("elsewhere", namespace="other"),
        *pod("lookalike", namespace="team-2"),
        *pod("strange-bucket", bucket="9-13"),
        *pod("strange-mode", mode="maybe"),
        *pod("", running=60),
        constant("sglang:num_running_reqs", {"namespace": "team", "pod": "unpatched"}, 3),
        counter(
            "sglang:spec_mode_tokens_total", {"namespace": "team", "pod": "half", "mode": "on", "batch_size": "1"}, 9
        ),
        constant("sglang:num_running_reqs", {"namespace": "team", "pod": "priorities", "priority": ""}, 11),
        constant("sglang:num_running_reqs", {"namespace": "team", "pod": "priorities", "priority": "1"}, 4),
        constant("sglang:spec_disable_batch_threshold", {"namespace": "team", "pod": "priorities"}, 4),
    ]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: pathlib.Path = tmp_path_factory.mktemp("prometheus-history")
    with prometheus.prometheus(folder, history=cluster()) as url:
        yield url


async def ask(address: str, *namespaces: str) -> MetricsSnapshot:
    settings = Settings(prometheus_url=address, watch_namespaces=namespaces)
    metrics = PrometheusMetrics(settings, FixedClock())
    try:
        return await metrics.snapshot()
    finally:
        await metrics.close()


def by_window(snapshot: MetricsSnapshot, name: str) -> dict[Window, ModeSample]:
    found = [sample for sample in snapshot.modes if sample.pod == name]
    assert len({sample.window for sample in found}) == len(found), found
    return {sample.window: sample for sample in found}


@pytest.mark.parametrize("name", ["colon", "both", "tensor", "scraped-twice", "two-jobs"])
async def test_one_pod_counts_once_however_often_it_is_stored(address: str, name: str) -> None:
    snapshot = await ask(address)
    found = by_window(snapshot, name)
    assert set(found) == {*WINDOWS, SPARSE}
    for window, sample in found.items():
        assert (sample.mode, sample.bucket.label) == (Mode.ON, "9-12")
        seconds = 0.8 * window.length_seconds
        assert sample.steps == pytest.approx(STEPS_PER_SECOND * seconds, rel=1e-6)
        assert sample.requests == pytest.approx(BATCH * STEPS_PER_SECOND * seconds, rel=1e-6)
        assert sample.seconds == pytest.approx(seconds, rel=1e-6)
        assert sample.tokens == pytest.approx(1000 * seconds, rel=1e-6)
        assert sample.seconds_squared == pytest.approx(seconds / STEPS_PER_SECOND, rel=1e-6)
    (probe,) = [probe for probe in snapshot.probes if probe.pod == name]
    assert probe.steps == pytest.approx(0.1 * PROBES.length_seconds, rel=1e-6)


async def test_the_underscore_spelling_is_the_same_metric(address: str) -> None:
    snapshot = await ask(address)
    sample = by_window(snapshot, "underscore")[WINDOWS[0]]
    assert (sample.mode, sample.bucket.label) == (Mode.OFF, "257+")
    assert sample.tokens / sample.seconds == pytest.approx(1000)
    loads = {load.pod: load for load in snapshot.loads}
    assert loads["underscore"].series.startswith("sglang_spec_")
    assert loads["colon"].series.startswith("sglang:spec_")


async def test_data_parallel_ranks_are_batches_of_their_own(address: str) -> None:
    sample = by_window(await ask(address), "data")[WINDOWS[0]]
    assert sample.seconds == pytest.approx(2 * 0.8 * WINDOWS[0].length_seconds, rel=1e-6)
    assert sample.requests / sample.steps == pytest.approx(BATCH)
    assert sample.tokens / sample.seconds == pytest.approx(500)


async def test_a_counter_that_starts_again_never_goes_down(address: str) -> None:
    """It did so in the third window; what it did between the last scrape and its end was never seen."""
    found = by_window(await ask(address), "restarted")
    sample = found[WINDOWS[2]]
    assert sample.seconds == pytest.approx(0.8 * (WINDOWS[2].length_seconds - STEP_SECONDS), rel=0.02)
    assert found[WINDOWS[0]].seconds == pytest.approx(0.8 * WINDOWS[0].length_seconds, rel=1e-6)
    assert sample.tokens / sample.seconds == pytest.approx(1000, rel=1e-6)


async def test_running_requests_are_one_number_a_pod(address: str) -> None:
    running = {load.pod: load.running_requests for load in (await ask(address)).loads}
    expected = {"colon": 10, "both": 10, "tensor": 12, "scraped-twice": 7, "two-jobs": 9, "data": 10, "priorities": 11}
    assert {name: running[name] for name in expected} == expected


async def test_waiting_requests_are_one_number_a_pod(address: str) -> None:
    queued = {load.pod: load.queued_requests for load in (await ask(address)).loads}
    expected = {"colon": 11, "both": 11, "tensor": 13, "scraped-twice": 8, "data": 12, "priorities": None}
    assert {name: queued[name] for name in expected} == expected


async def test_a_pod_that_is_gone_left_something_in_the_older_windows_alone(address: str) -> None:
    assert set(by_window(await ask(address), "stopped")) == set(WINDOWS[2:])


async def test_the_age_of_a_sample_is_its_own(address: str) -> None:
    loads = {load.pod: load for load in (await ask(address)).loads}
    assert loads["colon"].sampled_at == NOW
    assert loads["stopped"].sampled_at == NOW - timedelta(seconds=120)


async def test_what_is_not_understood_is_left_out_and_counted(address: str) -> None:
    snapshot = await ask(address)
    pods = {sample.pod for sample in snapshot.modes}
    assert not pods & {"strange-bucket", "strange-mode", "half", "unpatched", ""}
    assert "unpatched" not in {load.pod for load in snapshot.loads}
    # Five sums in five windows each have such a row, and the probes; the nameless pod has two times besides.
    assert snapshot.ignored.unknown_bucket == 26
    assert snapshot.ignored.unknown_mode == 26
    assert snapshot.ignored.no_pod == 28
    assert snapshot.ignored.bad_number == 0


async def test_only_the_watched_namespaces_are_asked_for(address: str) -> None:
    snapshot = await ask(address, "team")
    assert {load.namespace for load in snapshot.loads} == {"team"}
    snapshot = await ask(address, "other", "team-2")
    assert {load.namespace for load in snapshot.loads} == {"other", "team-2"}
    snapshot = await ask(address, 'te.m"} or up or x{a="')
    assert snapshot.loads == ()
    assert snapshot.modes == ()

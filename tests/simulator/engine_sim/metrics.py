"""SGLang's Prometheus series, as far as they are simulated, under SGLang's names and labels.

Scheduler series carry the labels of the reporting rank of their group, request series those of the tokenizer
manager. The patch registers its own series through `patch_collector`, with its own code.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from engine_sim.arguments import EngineArguments
from engine_sim.scheduler import Job

_LATENCY_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E_BUCKETS = (*_LATENCY_BUCKETS, 600, 1200, 1800, 2400)
_GAUGES = {
    "sglang:num_running_reqs": "The number of running requests.",
    "sglang:num_queue_reqs": "The number of requests in the waiting queue.",
    "sglang:num_used_tokens": "The number of used tokens.",
    "sglang:token_usage": "The token usage.",
    "sglang:gen_throughput": "The generation throughput (token/s).",
    "sglang:max_total_num_tokens": "Maximum total number of tokens in the KV cache pool.",
    "sglang:spec_accept_length": "Mean acceptance length of speculative decoding.",
    "sglang:cache_hit_rate": "The prefix cache hit rate.",
}


class Metrics:
    """The series of one server process."""

    def __init__(self, arguments: EngineArguments) -> None:
        # SGLang's multiprocess mode has no such series either.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._patch_registry = CollectorRegistry()
        self._patch_series: dict[str, Any] = {}
        self._groups = [_group_labels(arguments, index) for index in range(arguments.dp_size)]
        self._labels = {"model_name": arguments.served_model_name, "engine_type": "unified"}
        self._speculates = arguments.speculative_algorithm is not None
        group_names = tuple(self._groups[0])
        self._gauges = {n: Gauge(n, text, group_names, registry=self._registry) for n, text in _GAUGES.items()}
        self._late = Gauge(
            "sglang_sim_late_seconds",
            "Seconds by which the simulation fell behind its own step times, in sum.",
            group_names,
            registry=self._registry,
        )
        self._add_request_series()

    def patch_collector(self, index: int) -> SimpleNamespace:
        """What the patch's publisher takes for SGLang's metrics collector, for one rank group."""
        return SimpleNamespace(
            labels=self._groups[index],
            _counter_cls=lambda **options: self._shared(Counter, options),
            _gauge_cls=lambda **options: self._shared(Gauge, options),
        )

    def refresh(
        self,
        index: int,
        *,
        running: int,
        queued: int,
        used_tokens: int,
        max_total_tokens: int,
        tokens_per_second: float,
        accept_length: float | None,
        late_seconds: float,
    ) -> None:
        """Set the gauges of one rank group."""
        labels = self._groups[index]
        values = {
            "sglang:num_running_reqs": running,
            "sglang:num_queue_reqs": queued,
            "sglang:num_used_tokens": used_tokens,
            "sglang:token_usage": used_tokens / max_total_tokens,
            "sglang:gen_throughput": tokens_per_second,
            "sglang:max_total_num_tokens": max_total_tokens,
            "sglang:spec_accept_length": (accept_length or 0.0) if self._speculates else 0.0,
            "sglang:cache_hit_rate": 0.0,
        }
        for name, value in values.items():
            self._gauges[name].labels(**labels).set(value)
        self._late.labels(**labels).set(late_seconds)

    def observe_finished(self, job: Job) -> None:
        """Count a finished request, as SGLang does at its end."""
        labels = {**self._labels, "is_streaming": "true" if job.streaming else "false"}
        self._prompt_tokens.labels(**labels).inc(job.prompt_tokens)
        self._generation_tokens.labels(**labels).inc(job.generated)
        self._requests.labels(**labels).inc()
        if job.draft_steps:
            self._verify_calls.labels(**self._labels).inc(job.draft_steps)
        if job.first_token_seconds is not None and job.finished_seconds is not None:
            self._first_token.labels(**labels).observe(job.first_token_seconds - job.arrived_seconds)
            self._end_to_end.labels(**labels).observe(job.finished_seconds - job.arrived_seconds)

    def observe_aborted(self) -> None:
        """Count a request whose client went away."""
        self._aborted.labels(**self._labels).inc()

    def exposition(self, accept: str, *, with_patch: bool) -> tuple[bytes, str]:
        """The text of a scrape and its content type, in the format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        main, patch = encode(self._registry), encode(self._patch_registry)
        if not with_patch:
            return main, content_type
        end = b"# EOF\n"
        return (main.removesuffix(end) + patch if main.endswith(end) else main + patch), content_type

    def _add_request_series(self) -> None:
        names = tuple(self._labels)
        by_stream = (*names, "is_streaming")

        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._prompt_tokens = counter("sglang:prompt_tokens_total", "Number of prefill tokens processed.", by_stream)
        self._generation_tokens = counter(
            "sglang:generation_tokens_total", "Number of generation tokens processed.", by_stream
        )
        self._requests = counter("sglang:num_requests_total", "Number of requests processed.", by_stream)
        self._aborted = counter("sglang:num_aborted_requests_total", "Number of requests aborted.", names)
        self._verify_calls = counter(
            "sglang:spec_verify_calls_total", "Number of speculative decoding verification calls.", names
        )
        self._first_token = Histogram(
            "sglang:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            by_stream,
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self._end_to_end = Histogram(
            "sglang:e2e_request_latency_seconds",
            "Histogram of End-to-end request latency in seconds",
            by_stream,
            buckets=_E2E_BUCKETS,
            registry=self._registry,
        )

    def _shared(self, kind: type[Counter] | type[Gauge], options: dict[str, Any]) -> Counter | Gauge:
        """One series per name, however many rank groups of this process publish it."""
        name = options["name"]
        if name not in self._patch_series:
            self._patch_series[name] = kind(**options, registry=self._patch_registry)
        series: Counter | Gauge = self._patch_series[name]
        return series


def _group_labels(arguments: EngineArguments, index: int) -> dict[str, str]:
    labels = {
        "model_name": arguments.served_model_name,
        "engine_type": "unified",
        "tp_rank": "0",
        "pp_rank": "0",
        "moe_ep_rank": "0",
    }
    return {**labels, "dp_rank": str(index)} if arguments.dp_size > 1 else labels

"""Prometheus as a source of samples: one pass asks every query of `tuning.queries` and believes nothing it gets.

`prometheus_api_client` sends the queries, on worker threads since it blocks. What it leaves open is closed here:

- It drops `warnings`, takes any `resultType`, and reads bodies without a limit. A response hook looks at every answer
  before the client does (`prometheus_wire.Inspector`), so that partial answers, error pages and slow drips are errors.
- A reply that never ends must not hold anything up. Each pass has a deadline, on the thread and again around it; at
  most two passes are under way, each with a session of its own, and a third is refused at once.
- Its errors are of four unrelated kinds. All become `MetricsError`, with a sentence that never holds a token.
"""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from sglang_operator.adapters.ports import Clock
from sglang_operator.adapters.prometheus_wire import URL_SETTING, BadRow, BearerFile, Inspector, failure, parse_row
from sglang_operator.api.reasons import Reason
from sglang_operator.errors import MetricsError
from sglang_operator.settings import PREFIX, Settings
from sglang_operator.tuning import queries
from sglang_operator.tuning.samples import Answers, MetricsSnapshot, Row, assemble

_MAX_PASSES: Final = 2
_CONNECT_SECONDS: Final = 3.0


class PrometheusMetrics:
    """Implements `ports.Metrics`."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._url = settings.prometheus_url.rstrip("/")
        self._name = f"Prometheus at {urlsplit(self._url).netloc.rpartition('@')[2]}"
        self._timeout_seconds = float(settings.prometheus_timeout_seconds)
        self._deadline_seconds = 2 * self._timeout_seconds
        self._token_file = settings.prometheus_bearer_token_file
        self._ca_file = settings.prometheus_ca_file
        self._clock = clock
        self._queries = queries.build(namespaces=settings.watch_namespaces)
        self._executor = ThreadPoolExecutor(_MAX_PASSES, thread_name_prefix="prometheus")
        self._passes: set[Future[Answers]] = set()

    async def snapshot(self) -> MetricsSnapshot:
        """Ask for everything one tuning pass needs, one query a metric, all as of the same moment.

        Raises:
            MetricsError: Prometheus could not be asked, or its answer is not usable.
        """
        if not self._url:
            raise MetricsError(Reason.NOT_CONFIGURED, f"No Prometheus is set; set {URL_SETTING} to its address.")
        self._passes = {future for future in self._passes if not future.done()}
        if len(self._passes) >= _MAX_PASSES:
            raise MetricsError(
                Reason.METRICS_UNREACHABLE, f"{self._name} has left {_MAX_PASSES} earlier passes without an end."
            )
        at = self._clock.now()
        future = self._executor.submit(self._ask_all, at, self._clock.monotonic_seconds() + self._deadline_seconds)
        self._passes.add(future)
        try:
            # Half a second more than the thread allows itself: its own error says more.
            answers = await asyncio.wait_for(asyncio.wrap_future(future), self._deadline_seconds + 0.5)
        except TimeoutError as error:
            raise self._late() from error
        return assemble(answers, taken_at=at)

    async def close(self) -> None:
        """Take no more passes; one under way ends by itself at its deadline."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ask_all(self, at: datetime, deadline: float) -> Answers:
        with requests.Session() as session:
            session.verify = self._ca_file or True
            inspector = Inspector(self._name, lambda: self._clock.monotonic_seconds() > deadline, self._late)
            session.hooks["response"].append(inspector)
            # Retry-After is not honoured: it would let the other side choose how long the thread sleeps.
            retry = Retry(
                total=1,
                backoff_factor=0.2,
                status_forcelist=(429, 502, 503, 504),
                raise_on_status=False,
                respect_retry_after_header=False,
            )
            auth = BearerFile(self._token_file) if self._token_file else None
            client = PrometheusConnect(self._url, session=session, retry=retry, auth=auth)
            fields = dataclasses.fields(queries.Queries)
            return Answers(**{f.name: self._ask(client, getattr(self._queries, f.name), at, deadline) for f in fields})

    def _ask(self, client: PrometheusConnect, query: str, at: datetime, deadline: float) -> tuple[Row, ...]:
        left = deadline - self._clock.monotonic_seconds()
        if left <= 0:
            raise self._late()
        seconds = min(self._timeout_seconds, left)
        params = {"time": f"{at.timestamp():.3f}", "timeout": f"{seconds:.3f}"}
        try:
            result = client.custom_query(query, params=params, timeout=(min(_CONNECT_SECONDS, seconds), seconds))
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            PrometheusApiClientException,
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:
            # Not chained: a traceback in the log would print what the sentence leaves out.
            raise failure(error, name=self._name, ca_file=self._ca_file, seconds=self._timeout_seconds) from None
        try:
            return tuple(parse_row(item, at) for item in result)
        except BadRow as error:
            raise MetricsError(Reason.METRICS_INVALID, f"{self._name} answered with {error}.") from None

    def _late(self) -> MetricsError:
        return MetricsError(
            Reason.METRICS_UNREACHABLE,
            f"{self._name} did not answer all queries within {self._deadline_seconds:g} s; see its load, or raise "
            f"{PREFIX}PROMETHEUS_TIMEOUT_SECONDS.",
        )

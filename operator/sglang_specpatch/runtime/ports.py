"""The few things of SGLang that the patch touches, as types: what it relies on in every supported release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class StepPolicy(Protocol):
    """What SGLang's AdaptiveController asks its policy (`params`)."""

    @property
    def candidate_steps(self) -> list[int]:
        """Step counts that need a prepared state."""

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Take the captured batch sizes; None without CUDA graphs."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Choose the number of draft steps for the next decode step."""

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Learn from accepted drafts; a number asks for that many steps from now on."""

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Say for which batch sizes a state needs graphs; None keeps the server's own list."""


class Controller(Protocol):
    """SGLang's AdaptiveController: swaps the worker between prepared states as its policy says."""

    params: StepPolicy


class Worker(Protocol):
    """A speculative worker; the last two attributes are the patch's own."""

    adaptive_controller: Controller | None
    server_args: object
    speculative_num_steps: int
    specpatch: object
    specpatch_inactive_reason: str


class ForwardMode(Protocol):
    """What a batch is run for."""

    def is_extend(self) -> bool:
        """Tell a prefill from a decode step."""


class Request(Protocol):
    """One request of a batch."""

    @property
    def finished_reason(self) -> object | None:
        """Why it ended, or None while it runs."""

    @property
    def is_retracted(self) -> bool:
        """Whether it lost its place and will start again."""


class Batch(Protocol):
    """A scheduled batch."""

    @property
    def forward_mode(self) -> ForwardMode:
        """What it is run for."""

    @property
    def is_extend_in_batch(self) -> bool:
        """Whether any rank prefills in this turn."""

    @property
    def reqs(self) -> Sequence[Request]:
        """Its requests."""


class StepResult(Protocol):
    """The result of one verify: 1 draft token means that nothing was drafted; correct drafts don't count the bonus."""

    @property
    def speculative_num_draft_tokens(self) -> int:
        """Width of the verify, drafts and bonus."""

    @property
    def num_correct_drafts(self) -> int:
        """Accepted drafts of the whole batch."""


class Reporter(Protocol):
    """Knows whether this rank reports metrics."""

    @property
    def current_scheduler_metrics_enabled(self) -> bool:
        """Whether it does."""


class Collector(Protocol):
    """Holds the labels of the scheduler's metrics."""

    @property
    def labels(self) -> Mapping[str, object]:
        """Label names and values."""


class Processor(Protocol):
    """Turns results into output tokens."""

    @property
    def model_worker(self) -> object:
        """The worker whose results it handles."""

    @property
    def metrics_reporter(self) -> Reporter:
        """Knows whether to publish."""

    @property
    def metrics_collector(self) -> Collector | None:
        """Where to publish; None without metrics."""


class Scheduler(Protocol):
    """One scheduler process."""

    @property
    def draft_worker(self) -> object | None:
        """The speculative worker; None without speculation."""

    @property
    def metrics_reporter(self) -> Reporter:
        """Knows whether to publish."""

    @property
    def metrics_collector(self) -> Collector | None:
        """Where to publish; None without metrics."""


class HttpRequest(Protocol):
    """A request as the web framework hands it to a route."""

    async def json(self) -> object:
        """Return the body, read as JSON."""


class Metric(Protocol):
    """A labelled Prometheus counter or gauge."""

    def labels(self, **labels: object) -> Metric:
        """Return the series of these labels."""

    def inc(self, amount: float = 1) -> None:
        """Add to a counter."""

    def set(self, value: float) -> None:
        """Set a gauge."""


ControllerClass = Callable[[Worker, None], Controller]
MetricClass = Callable[..., Metric]

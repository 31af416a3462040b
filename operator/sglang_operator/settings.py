"""Settings of the operator process, read once from the environment at start."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, field_validator

PREFIX = "SGLANG_OPERATOR_"


class Settings(BaseModel):
    """What an administrator sets for the whole operator (in the chart: `values.yaml`).

    Each field is read from the environment variable `SGLANG_OPERATOR_<FIELD>` in capitals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = Field(default="default", min_length=1)
    """Namespace the operator itself runs in."""

    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to serve, separated by commas in the environment; empty: the whole cluster."""

    prometheus_url: str = Field(default="", pattern=r"^(https?://.+)?$")
    """Base address of Prometheus, without `/api/v1`. Empty: `mode: Auto` holds its starting value and says so."""

    prometheus_timeout_seconds: int = Field(default=5, ge=1, le=60)
    """Time allowed for one Prometheus query."""

    prometheus_bearer_token_file: str = ""
    """File with a bearer token for Prometheus; read again at each request, so that rotation works."""

    prometheus_ca_file: str = ""
    """Certificate authority bundle for Prometheus; empty: the system's."""

    metrics_max_age_seconds: int = Field(default=60, ge=5, le=3600)
    """Samples older than this count as missing."""

    tuning_interval_seconds: int = Field(default=10, ge=1, le=600)
    """Time between two passes of the tuning loop."""

    tuning_dwell_seconds: int = Field(default=30, ge=1, le=3600)
    """Shortest time between two changes of one service's threshold."""

    resync_interval_seconds: int = Field(default=60, ge=5, le=3600)
    """Each service gets a pass at least this often, events or not; pods are read back as often."""

    engine_timeout_seconds: int = Field(default=5, ge=1, le=60)
    """Time allowed for one request to a server pod."""

    max_parallel_passes: int = Field(default=4, ge=1, le=64)
    """How many services are worked on at the same time."""

    health_port: int = Field(default=8080, ge=1, le=65_535)
    """Port of `/healthz`."""

    metrics_port: int = Field(default=9090, ge=1, le=65_535)
    """Port of the operator's own `/metrics`."""

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from `SGLANG_OPERATOR_*` variables.

    Raises:
        pydantic.ValidationError: a variable has a value outside its bounds, or is unknown.
    """
    values = {
        name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)
    }
    return Settings.model_validate(values)

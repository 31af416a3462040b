"""Settings of the simulation, from environment variables only: SGLang's command line stays SGLang's."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from pathlib import Path

from engine_sim.faults import Faults, faults_from_text
from sglang_operator.simulate.curves.csvfile import curve_from_csv
from sglang_operator.simulate.curves.curve import Curve, CurveError
from sglang_operator.simulate.curves.families import MEASURED_ACCEPT_LENGTH, curve_by_name

PREFIX = "SGLANG_SIM_"
_HEALTH_VARIABLE = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"


class SettingsError(ValueError):
    """An environment variable is not usable; the message names it and the right form."""


class Resolution(enum.Enum):
    """How much of SGLang's own argument resolution runs: see `launch`."""

    AUTO = "auto"
    FULL = "full"
    RECORD = "record"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the simulation does beyond SGLang's flags.

    accept_length: mean output tokens per request and drafting step, with 3 drafted tokens.
    load_seconds: how long the engine "loads" before /health answers 200.
    health_generates: whether /health waits for a generated token (SGLang's own variable, true unless it says false).
    max_total_tokens: KV cache of one rank group unless --max-total-tokens says otherwise.
    """

    curve: Curve
    accept_length: float
    load_seconds: float
    seed: int
    max_total_tokens: int
    max_running_requests: int
    resolution: Resolution
    faults: Faults
    health_generates: bool


_VARIABLES = (
    "CURVE",
    "ACCEPT_LENGTH",
    "LOAD_SECONDS",
    "SEED",
    "MAX_TOTAL_TOKENS",
    "MAX_RUNNING_REQUESTS",
    "RESOLUTION",
    "FAULTS",
)


def settings_from_environment(environment: Mapping[str, str]) -> Settings:
    """Read every SGLANG_SIM_… variable.

    Raises SettingsError naming the variable and the right form, also for a variable that does not exist.
    """
    for name in environment:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in _VARIABLES:
            known = ", ".join(PREFIX + variable for variable in _VARIABLES)
            raise SettingsError(f"{name} is no setting of the simulated engine; known settings: {known}")
    curve = curve_named(environment.get(PREFIX + "CURVE", "mid"), environment)
    return Settings(
        curve=curve,
        accept_length=_number(environment, "ACCEPT_LENGTH", curve.accept_length, 1.0, 4.0),
        load_seconds=_number(environment, "LOAD_SECONDS", 2.0, 0.0, 86_400.0),
        seed=_whole(environment, "SEED", 0, 0, 2**32),
        max_total_tokens=_whole(environment, "MAX_TOTAL_TOKENS", 1_000_000, 1, 10**9),
        max_running_requests=_whole(environment, "MAX_RUNNING_REQUESTS", 256, 1, 4096),
        resolution=_resolution(environment),
        faults=_faults(environment),
        health_generates=environment.get(_HEALTH_VARIABLE, "true").lower() not in ("false", "0", "no", "n"),
    )


def curve_named(text: str, environment: Mapping[str, str]) -> Curve:
    """A named curve, or one read from a path that ends in `.csv`. Raises SettingsError."""
    try:
        if text.endswith(".csv"):
            accept = _number(environment, "ACCEPT_LENGTH", MEASURED_ACCEPT_LENGTH, 1.0, 4.0)
            return curve_from_csv(Path(text), accept_length=accept)
        return curve_by_name(text)
    except (CurveError, OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{PREFIX}CURVE={text}: {error}") from error


def _number(environment: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = environment.get(PREFIX + name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise SettingsError(f"{PREFIX}{name}={text} must be a number from {low:g} to {high:g}")
    return value


def _whole(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    value = _number(environment, name, default, low, high)
    if value != int(value):
        raise SettingsError(f"{PREFIX}{name}={environment[PREFIX + name]} must be a whole number")
    return int(value)


def _resolution(environment: Mapping[str, str]) -> Resolution:
    text = environment.get(PREFIX + "RESOLUTION", Resolution.AUTO.value)
    try:
        return Resolution(text)
    except ValueError:
        raise SettingsError(
            f"{PREFIX}RESOLUTION={text} must be one of {', '.join(r.value for r in Resolution)}"
        ) from None


def _faults(environment: Mapping[str, str]) -> Faults:
    try:
        return faults_from_text(environment.get(PREFIX + "FAULTS", ""))
    except ValueError as error:
        raise SettingsError(f"{PREFIX}FAULTS: {error}") from error

"""When the kubelet counts a server as started, ready and alive.

All ask `/health`, which the environment keeps from generating (see `render.environment`): it says 503 while the
server loads, captures graphs or drains, and 200 otherwise. `/health_generate` sends a request through the model; under
a long prefill it fails although the server works, and it takes part in the load that it should only watch.
"""

from __future__ import annotations

from typing import Final

from sglang_operator.api import names
from sglang_operator.api.v1alpha1 import Manifest

HEALTH_PATH: Final = "/health"
STARTUP_PERIOD_SECONDS: Final = 10


def startup(budget_seconds: int) -> Manifest:
    """Allow the server `budget_seconds` to load, compile and capture, rounded up to whole periods."""
    return _probe(
        period_seconds=STARTUP_PERIOD_SECONDS,
        timeout_seconds=STARTUP_PERIOD_SECONDS,
        failures=-(-budget_seconds // STARTUP_PERIOD_SECONDS),
    )


def readiness() -> Manifest:
    """Take a pod out of the Service after half a minute. A loaded server may need many seconds for an answer."""
    return _probe(period_seconds=10, timeout_seconds=30, failures=3)


def liveness() -> Manifest:
    """Restart only what has been dead for minutes: a restart costs the whole load again."""
    return _probe(period_seconds=30, timeout_seconds=60, failures=10)


def _probe(*, period_seconds: int, timeout_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": names.PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    }

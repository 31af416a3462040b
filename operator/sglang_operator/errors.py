"""Every error this program raises on purpose, as one tree.

::

    OperatorError
    ├── SpecError                the custom resource asks for something that can't be
    ├── ClusterError             the Kubernetes API refused or failed
    │   ├── ClusterConflict      somebody else changed the object meanwhile
    │   └── ClusterForbidden     the operator's role lacks a permission
    ├── MetricsError             Prometheus gave no usable answer
    └── EngineError              a server pod gave no usable answer
        ├── EngineUnreachable    no connection, or no reply in time
        ├── EngineUnauthorized   the server wants an API key, or another one
        ├── APIKeyUnavailable    the key that the server wants can't be had from its Secret
        └── EngineRefused        the server answered and declined the update

Adapters map third-party exceptions to this tree; nothing above them sees a client library's error.
Messages are sentences for people: the cause first, then what to do.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of all errors that the operator raises on purpose."""


class SpecError(OperatorError):
    """A custom resource asks for something that can't be; `reason` is a condition reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ClusterError(OperatorError):
    """The Kubernetes API refused a request or could not be reached; `status` is the HTTP status, or None."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ClusterConflict(ClusterError):
    """The object was changed by somebody else between reading and writing (HTTP 409)."""


class ClusterForbidden(ClusterError):
    """The operator's role lacks a permission (HTTP 403)."""


class MetricsError(OperatorError):
    """Prometheus could not be asked, or its answer is not usable; `reason` is a condition reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EngineError(OperatorError):
    """A server pod could not be asked, or its answer is not usable."""


class EngineUnreachable(EngineError):
    """No connection to the server, or no reply in time."""


class EngineUnauthorized(EngineError):
    """The server wants an API key that the request did not carry (HTTP 401 or 403)."""


class APIKeyUnavailable(EngineError):
    """The Secret with the server's API key is missing, closed to the operator, or holds no usable key."""


class EngineRefused(EngineError):
    """The server answered and declined the update, or kept another value."""

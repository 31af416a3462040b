"""Condition types, and every reason that a condition or an event may carry.

One list, so that people can search it and tests can hold the documentation against it.
"""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """Conditions of an InferenceService; all are present from the first visit."""

    READY = "Ready"
    SPEC_VALID = "SpecValid"
    SCHEDULED = "Scheduled"
    PATCH_VERIFIED = "PatchVerified"
    SERVING = "Serving"
    UP_TO_DATE = "UpToDate"
    METRICS_AVAILABLE = "MetricsAvailable"
    THRESHOLD_SYNCED = "ThresholdSynced"
    DEGRADED = "Degraded"


class Reason(StrEnum):
    """Reasons of conditions."""

    # Ready
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    SCALED_TO_ZERO = "ScaledToZero"
    # SpecValid
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    CONFLICTING_ARGS = "ConflictingArgs"
    # Scheduled
    PODS_SCHEDULED = "PodsScheduled"
    PODS_PENDING = "PodsPending"
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    NO_MATCHING_NODE = "NoMatchingNode"
    UNTOLERATED_TAINT = "UntoleratedTaint"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    # PatchVerified
    PATCHED = "Patched"
    PATCH_PENDING = "PatchPending"
    PATCH_NOT_NEEDED = "PatchNotNeeded"
    UNSUPPORTED_SOURCE = "UnsupportedSource"
    UNSUPPORTED_WORKER = "UnsupportedWorker"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_NOT_WRITABLE = "SourceNotWritable"
    UNKNOWN_PATCH_STATE = "UnknownPatchState"
    IMPORT_CHECK_FAILED = "ImportCheckFailed"
    IMPORT_CHECK_OOM_KILLED = "ImportCheckOOMKilled"
    TORCH_ABI_MISMATCH = "TorchABIMismatch"
    MISSING_SYSTEM_LIBRARY = "MissingSystemLibrary"
    NO_GPU_VISIBLE = "NoGPUVisible"
    PACKAGE_MISMATCH = "PackageMismatch"
    NO_SPACE = "NoSpace"
    # Serving
    SERVING = "Serving"
    NOT_SERVING = "NotServing"
    STARTING = "Starting"
    START_STALLED = "StartStalled"
    CRASH_LOOP = "CrashLoop"
    OOM_KILLED = "OOMKilled"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG = "ContainerConfigError"
    # UpToDate
    CURRENT = "Current"
    ROLLING_OUT = "RollingOut"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    # MetricsAvailable
    FRESH = "Fresh"
    NOT_USED = "NotUsed"
    NOT_CONFIGURED = "NotConfigured"
    METRICS_UNREACHABLE = "MetricsUnreachable"
    METRICS_INVALID = "MetricsInvalid"
    NO_DATA = "NoData"
    STALE = "Stale"
    # ThresholdSynced
    SYNCED = "Synced"
    NO_PODS = "NoPods"
    SYNCING = "Syncing"
    ENGINE_UNREACHABLE = "EngineUnreachable"
    ENGINE_REFUSED = "EngineRefused"
    LIVE_UPDATE_UNAUTHORIZED = "LiveUpdateUnauthorized"
    API_KEY_UNAVAILABLE = "APIKeyUnavailable"
    THRESHOLD_INACTIVE = "ThresholdInactive"
    # Degraded
    AS_EXPECTED = "AsExpected"
    APPLY_FAILED = "ApplyFailed"
    OPERATOR_FORBIDDEN = "OperatorForbidden"
    # any condition whose facts are not known yet
    NOT_OBSERVED = "NotObserved"


class EventReason(StrEnum):
    """Reasons of events, for `kubectl describe`."""

    THRESHOLD_CHANGED = "ThresholdChanged"
    THRESHOLD_SYNCED = "ThresholdSynced"
    THRESHOLD_NOT_SYNCED = "ThresholdNotSynced"
    PATCH_VERIFIED = "PatchVerified"
    PATCH_REFUSED = "PatchRefused"
    SPEC_REFUSED = "SpecRefused"
    METRICS_LOST = "MetricsLost"
    METRICS_BACK = "MetricsBack"
    READY = "Ready"
    NOT_READY = "NotReady"
    ROLLING_OUT = "RollingOut"
    APPLY_FAILED = "ApplyFailed"
    CRASH_LOOP = "CrashLoop"
    DEGRADED = "Degraded"
    RECOVERED = "Recovered"

"""What each condition and reason means and what to do about it, for the reference page.

Messages of conditions say the same with the names of the case at hand; these texts are for people who search for a
reason. Every condition, reason and event has one: a test holds this list against `api.reasons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sglang_operator.api.reasons import ConditionType, EventReason, Reason


@dataclass(frozen=True)
class Explanation:
    """What a reason means, and what to do; `next_step` is empty where nothing needs doing."""

    meaning: str
    next_step: str = ""


@dataclass(frozen=True)
class ConditionText:
    """What a condition says when it is True, and the reasons of its own that it may carry."""

    meaning: str
    reasons: tuple[Reason, ...]


_WAIT: Final = "Wait; the message says since when."

CONDITIONS: Final[Mapping[ConditionType, ConditionText]] = MappingProxyType(
    {
        ConditionType.READY: ConditionText(
            "Every pod that is asked for answers, with the current specification. When one does not, `Ready` carries "
            "the reason of the condition that tells why. Threshold and metrics have no part in it: without them the "
            "servers draft too much or too little, but they serve.",
            (Reason.AVAILABLE, Reason.PROGRESSING, Reason.SCALED_TO_ZERO),
        ),
        ConditionType.SPEC_VALID: ConditionText(
            "The specification makes sense to the operator. What the API server can check it refuses at apply; "
            "the rest shows here, and pods that run go on running as they are.",
            (Reason.ACCEPTED, Reason.INVALID_SPEC, Reason.CONFLICTING_ARGS),
        ),
        ConditionType.SCHEDULED: ConditionText(
            "Every pod has a node.",
            (
                Reason.PODS_SCHEDULED,
                Reason.PODS_PENDING,
                Reason.INSUFFICIENT_GPUS,
                Reason.NO_MATCHING_NODE,
                Reason.UNTOLERATED_TAINT,
                Reason.QUOTA_EXCEEDED,
                Reason.POD_REFUSED,
                Reason.SCALED_TO_ZERO,
            ),
        ),
        ConditionType.PATCH_VERIFIED: ConditionText(
            "SGLang was patched in every pod, and the import check printed `server_args OK` before the server started.",
            (
                Reason.PATCHED,
                Reason.PATCH_PENDING,
                Reason.PATCH_NOT_NEEDED,
                Reason.UNSUPPORTED_SOURCE,
                Reason.UNSUPPORTED_WORKER,
                Reason.SOURCE_NOT_FOUND,
                Reason.SOURCE_NOT_WRITABLE,
                Reason.UNKNOWN_PATCH_STATE,
                Reason.IMPORT_CHECK_FAILED,
                Reason.IMPORT_CHECK_OOM_KILLED,
                Reason.TORCH_ABI_MISMATCH,
                Reason.MISSING_SYSTEM_LIBRARY,
                Reason.NO_GPU_VISIBLE,
                Reason.PACKAGE_MISMATCH,
                Reason.NO_SPACE,
                Reason.IMAGE_PULL_FAILED,
                Reason.CONTAINER_CONFIG,
                Reason.START_STALLED,
                Reason.SCALED_TO_ZERO,
            ),
        ),
        ConditionType.SERVING: ConditionText(
            "At least one pod answers, of whatever revision: requests are taken.",
            (
                Reason.SERVING,
                Reason.NOT_SERVING,
                Reason.STARTING,
                Reason.START_STALLED,
                Reason.CRASH_LOOP,
                Reason.OOM_KILLED,
                Reason.IMAGE_PULL_FAILED,
                Reason.CONTAINER_CONFIG,
                Reason.SCALED_TO_ZERO,
            ),
        ),
        ConditionType.UP_TO_DATE: ConditionText(
            "Every pod runs the current specification. It is False with the reason of `SpecValid` or `Degraded` while "
            "nothing can be rolled out.",
            (Reason.CURRENT, Reason.ROLLING_OUT, Reason.PROGRESS_DEADLINE_EXCEEDED),
        ),
        ConditionType.METRICS_AVAILABLE: ConditionText(
            "Prometheus gives fresh measurements of the service. Without them the threshold stays where it is.",
            (
                Reason.FRESH,
                Reason.NOT_USED,
                Reason.NOT_CONFIGURED,
                Reason.METRICS_UNREACHABLE,
                Reason.METRICS_INVALID,
                Reason.NO_DATA,
                Reason.STALE,
                Reason.NO_PODS,
            ),
        ),
        ConditionType.THRESHOLD_SYNCED: ConditionText(
            "The threshold was read back from every rank of every pod.",
            (
                Reason.SYNCED,
                Reason.NOT_USED,
                Reason.NO_PODS,
                Reason.SYNCING,
                Reason.ENGINE_UNREACHABLE,
                Reason.ENGINE_REFUSED,
                Reason.LIVE_UPDATE_UNAUTHORIZED,
                Reason.API_KEY_UNAVAILABLE,
                Reason.THRESHOLD_INACTIVE,
            ),
        ),
        ConditionType.DEGRADED: ConditionText(
            "Something won't come right without a person. `Degraded` then carries the reason of the condition that "
            "tells what; what may pass by itself counts only after some minutes.",
            (Reason.AS_EXPECTED, Reason.APPLY_FAILED, Reason.OPERATOR_FORBIDDEN),
        ),
    }
)
"""In the order in which conditions stand in the status."""

REASONS: Final[Mapping[Reason, Explanation]] = MappingProxyType(
    {
        Reason.NOT_OBSERVED: Explanation(
            "Nothing is known yet: the operator has not looked, or what it needs to see does not exist yet.",
            "If it stays so for more than a minute, look at the operator's log.",
        ),
        Reason.AVAILABLE: Explanation("All replicas answer with the current specification."),
        Reason.PROGRESSING: Explanation("The service is being started or changed.", _WAIT),
        Reason.SCALED_TO_ZERO: Explanation("No replicas are asked for.", "Set `spec.replicas` above 0 to serve."),
        Reason.ACCEPTED: Explanation("The specification is in order."),
        Reason.INVALID_SPEC: Explanation(
            "A field has a value that can't be; an older CRD let it through.",
            "Correct the fields that the message names, and install the CRD of this release.",
        ),
        Reason.CONFLICTING_ARGS: Explanation(
            "`engine.args` sets what a field of the resource sets, or holds a flag in a form that the server won't "
            "take.",
            "Remove the flag that the message names, or use the field.",
        ),
        Reason.PODS_SCHEDULED: Explanation("Every pod has a node."),
        Reason.PODS_PENDING: Explanation(
            "A pod is about to be made, waits for GPUs that are being freed, or finds no node for a cause without a "
            "reason of its own; the message tells which.",
            "If it stays so, do what the message says.",
        ),
        Reason.INSUFFICIENT_GPUS: Explanation(
            "Nodes that fit exist, but none has enough free GPUs.",
            "Free GPUs, add a node, or lower `gpus.count` or `replicas`.",
        ),
        Reason.NO_MATCHING_NODE: Explanation(
            "No node has the labels that `gpus` and `podTemplate` ask for.",
            "Compare `gpus.architecture`, `gpus.product` and `podTemplate.nodeSelector` with "
            "`kubectl get nodes --show-labels`; the labels come from GPU feature discovery.",
        ),
        Reason.UNTOLERATED_TAINT: Explanation(
            "Nodes that fit exist, but have a taint that the pods don't tolerate.",
            "Add the taint that the message names to `podTemplate.tolerations`, or remove it from the node.",
        ),
        Reason.QUOTA_EXCEEDED: Explanation(
            "A ResourceQuota of the namespace does not allow the pods.",
            "Raise the quota that the message names, or ask for less.",
        ),
        Reason.POD_REFUSED: Explanation(
            "The API server refuses the pods: a pod security level, a LimitRange or an admission policy.",
            "Change what the message names; `podTemplate` holds security contexts and the like.",
        ),
        Reason.PATCHED: Explanation("SGLang was patched, and the import check passed."),
        Reason.PATCH_PENDING: Explanation("The init container that patches SGLang has not finished yet.", _WAIT),
        Reason.PATCH_NOT_NEEDED: Explanation("The service does not speculate, so SGLang runs as it is."),
        Reason.UNSUPPORTED_SOURCE: Explanation(
            "The SGLang in the image differs from what the patch knows. Nothing was changed.",
            "Use an image with a supported release (0.5.14 or newer), or set `speculation.algorithm: None`.",
        ),
        Reason.UNSUPPORTED_WORKER: Explanation(
            "The speculative worker of this SGLang can't switch drafting off (EAGLE's first version).",
            "Use a newer release, or an EAGLE version 2 worker.",
        ),
        Reason.SOURCE_NOT_FOUND: Explanation(
            "Python in the image finds no SGLang, or one that is not a folder of sources.",
            "Check `engine.image`, and `PYTHONPATH` in `engine.env`.",
        ),
        Reason.SOURCE_NOT_WRITABLE: Explanation(
            "The volume for the patched copy can't be written.",
            "Check `podTemplate.securityContext` (`fsGroup`, `runAsUser`) and mounts over `/opt/sglang-patched`.",
        ),
        Reason.UNKNOWN_PATCH_STATE: Explanation(
            "The image's SGLang carries another or an incomplete version of the patch.",
            "Use an unmodified SGLang image.",
        ),
        Reason.IMPORT_CHECK_FAILED: Explanation(
            "The patched SGLang does not import, or does not know the threshold.",
            "Read the log lines in the message. If the image alone fails too, repair the image; else report it.",
        ),
        Reason.IMPORT_CHECK_OOM_KILLED: Explanation(
            "The import check needed more memory than its limit.",
            "Raise `engine.resources.memoryLimit`, or the LimitRange that set the limit.",
        ),
        Reason.TORCH_ABI_MISMATCH: Explanation(
            "A compiled package of the image was built for another torch.",
            "Use an image whose torch and sgl-kernel belong together.",
        ),
        Reason.MISSING_SYSTEM_LIBRARY: Explanation(
            "A shared library is missing from the image; the message names it.",
            "Install it in the image.",
        ),
        Reason.NO_GPU_VISIBLE: Explanation(
            "The container sees no GPU.",
            "Check the GPU device plugin, and set `podTemplate.runtimeClassName` where the cluster needs it.",
        ),
        Reason.PACKAGE_MISMATCH: Explanation(
            "A Python package of the image has another version than SGLang needs; the message names it.",
            "Use an image that was built in one piece, or pin the package.",
        ),
        Reason.NO_SPACE: Explanation(
            "The node has no room for the patched copy of SGLang (about 60 MB).",
            "Free ephemeral storage on the node, or raise the limit on it.",
        ),
        Reason.SERVING: Explanation("At least one pod answers."),
        Reason.NOT_SERVING: Explanation(
            "No pod answers, for a reason that another condition tells.",
            "Look at `Scheduled` and `PatchVerified`.",
        ),
        Reason.STARTING: Explanation(
            "The server loads weights, compiles or captures graphs; a first start can take an hour.",
            "Wait; raise `engine.startupTimeoutSeconds` if the message shows the time running out.",
        ),
        Reason.START_STALLED: Explanation(
            "The start makes no progress, or took longer than allowed.",
            "Read the server's log; raise `engine.startupTimeoutSeconds` if it only needs longer.",
        ),
        Reason.CRASH_LOOP: Explanation(
            "The server ends again and again before it answers.",
            "The message holds its last words; `kubectl logs --previous` shows the rest.",
        ),
        Reason.OOM_KILLED: Explanation(
            "The server was killed for using more memory than allowed.",
            "Raise `engine.resources.memoryLimit`; shared memory counts against it.",
        ),
        Reason.IMAGE_PULL_FAILED: Explanation(
            "The node can't get the image.",
            "Check `engine.image` and `podTemplate.imagePullSecrets`; the message holds the node's own words.",
        ),
        Reason.CONTAINER_CONFIG: Explanation(
            "The node can't make the container: a Secret, a ConfigMap or a volume is missing or wrong.",
            "Create or correct what the message names; the pod then goes on by itself.",
        ),
        Reason.CURRENT: Explanation("All pods run the current specification."),
        Reason.ROLLING_OUT: Explanation("Pods are being replaced.", _WAIT),
        Reason.PROGRESS_DEADLINE_EXCEEDED: Explanation(
            "The new pods did not become ready in time.",
            "Look at the other conditions for the cause; then correct the specification, or take the change back.",
        ),
        Reason.FRESH: Explanation("Prometheus has fresh measurements of the service."),
        Reason.NOT_USED: Explanation("The service needs none: the threshold is fixed, or it does not speculate."),
        Reason.NOT_CONFIGURED: Explanation(
            "The operator was installed without the address of Prometheus.",
            "Set `prometheus.url` in the chart's values.",
        ),
        Reason.METRICS_UNREACHABLE: Explanation(
            "Prometheus does not answer, or refuses the operator.",
            "Check the address, network policies and credentials that the message names.",
        ),
        Reason.METRICS_INVALID: Explanation(
            "Prometheus answers with something else than measurements.",
            "Check that `prometheus.url` leads to Prometheus itself, not to a login page or a proxy.",
        ),
        Reason.NO_DATA: Explanation(
            "Prometheus knows no measurements of the service's pods.",
            "Check that Prometheus scrapes the pods and keeps the labels that the documentation asks for.",
        ),
        Reason.STALE: Explanation(
            "The newest measurements are too old to act on.",
            "Check that Prometheus still scrapes the pods, and that the clocks agree.",
        ),
        Reason.SYNCED: Explanation("Every rank of every pod has the threshold."),
        Reason.NO_PODS: Explanation(
            "No pod answers, so there is none to tell the threshold to, and no load to measure."
        ),
        Reason.SYNCING: Explanation("The threshold was decided and is being told to the pods.", _WAIT),
        Reason.ENGINE_UNREACHABLE: Explanation(
            "A pod does not answer the operator; it keeps the threshold that it has, and is asked again.",
            "If it stays so, check network policies between the operator and the pods.",
        ),
        Reason.ENGINE_REFUSED: Explanation(
            "A server declined the threshold, or kept another value.",
            "Read the server's log; the operator tries again.",
        ),
        Reason.LIVE_UPDATE_UNAUTHORIZED: Explanation(
            "The server refuses the key of its Secret, or wants one that the resource doesn't tell of.",
            "If the Secret has changed since the pods started, replace them: `kubectl rollout restart "
            "deployment/NAME`. A key that comes from elsewhere belongs into a Secret, named in "
            "`engine.apiKeySecretRef`.",
        ),
        Reason.API_KEY_UNAVAILABLE: Explanation(
            "The operator can't get the server's API key: the Secret or its key is missing, the operator may not read "
            "it, or the value can't be used as a key. The server keeps the threshold that it has.",
            "Do what the message says; with `rbac.readSecrets: false` in the chart's values, grant `get` on the Secret "
            "to the operator's account.",
        ),
        Reason.THRESHOLD_INACTIVE: Explanation(
            "The server took the threshold but does not act on it; the message holds its own words.",
            "Change what the message names, usually a flag in `engine.args`, or set `speculation.algorithm: None`.",
        ),
        Reason.AS_EXPECTED: Explanation("Nothing is wrong."),
        Reason.APPLY_FAILED: Explanation(
            "The API server refused an object of the service.",
            "The message holds its words; correct the field that they name.",
        ),
        Reason.OPERATOR_FORBIDDEN: Explanation(
            "The operator's role lacks a permission.",
            "Install the chart's roles anew; check that the namespace is among those the operator serves.",
        ),
    }
)

EVENTS: Final[Mapping[EventReason, Explanation]] = MappingProxyType(
    {
        EventReason.THRESHOLD_CHANGED: Explanation("The threshold was decided anew; the message says why."),
        EventReason.THRESHOLD_SYNCED: Explanation("All pods have the threshold, read back from each rank."),
        EventReason.THRESHOLD_NOT_SYNCED: Explanation(
            "A pod lacks the threshold.", "Look at the condition `ThresholdSynced`."
        ),
        EventReason.PATCH_VERIFIED: Explanation("SGLang was patched, and the import check passed."),
        EventReason.PATCH_REFUSED: Explanation(
            "SGLang could not be patched, or the import check failed.", "Look at the condition `PatchVerified`."
        ),
        EventReason.SPEC_REFUSED: Explanation("The specification can't be.", "Look at the condition `SpecValid`."),
        EventReason.METRICS_LOST: Explanation(
            "There are no usable measurements; the threshold stays.", "Look at the condition `MetricsAvailable`."
        ),
        EventReason.METRICS_BACK: Explanation("There are usable measurements again."),
        EventReason.READY: Explanation("The service became ready."),
        EventReason.NOT_READY: Explanation("The service is no longer ready.", "Look at the condition `Ready`."),
        EventReason.ROLLING_OUT: Explanation("Pods are being replaced, since the specification changed."),
        EventReason.APPLY_FAILED: Explanation(
            "The API server refused an object of the service.", "Look at the condition `Degraded`."
        ),
        EventReason.CRASH_LOOP: Explanation(
            "A server ends again and again before it answers.", "The message holds its last words."
        ),
        EventReason.DEGRADED: Explanation(
            "Something won't come right without a person.", "Look at the condition `Degraded`."
        ),
        EventReason.RECOVERED: Explanation("What needed a person came right."),
    }
)

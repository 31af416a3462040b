"""The Service in front of the pods, and the ConfigMap that keeps the last decided threshold.

The ConfigMap is both the boot value of restarted servers and the operator's own memory: what it decided, when and
why is read back from there after a restart of the operator.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sglang_operator.api import names
from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import InferenceService, Manifest, ThresholdEvidence, ThresholdSource
from sglang_operator.render import identity


def service_name(service: str) -> str:
    """Name of the Service of an InferenceService."""
    return names.child_name(service)


def threshold_name(service: str) -> str:
    """Name of the ConfigMap with the threshold of an InferenceService."""
    return names.child_name(service, "threshold")


def network_service(service: InferenceService) -> Manifest:
    """The Service: the same port as the server's, to ready pods alone."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(service, service_name(service.name)),
        "spec": {
            "type": "ClusterIP",
            "selector": identity.selector(service),
            "ports": [
                {
                    "name": names.PORT_NAME,
                    "port": service.spec.engine.port,
                    "targetPort": names.PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def threshold_config_map(service: InferenceService, decision: Decision) -> Manifest:
    """A decision as a ConfigMap. `decision.decided_at` must carry its zone."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": identity.metadata(
            service,
            threshold_name(service.name),
            annotations=_annotations(decision),
        ),
        "data": {
            names.THRESHOLD_KEY: str(decision.batch_size),
            names.PROBE_KEY: str(decision.probe_permille),
        },
    }


def read_decision(manifest: Manifest) -> Decision | None:
    """Read a decision back from its ConfigMap; None when somebody has left it unreadable."""
    annotations = manifest.get("metadata", {}).get("annotations") or {}
    data = manifest.get("data") or {}
    try:
        batch_size = _number(data[names.THRESHOLD_KEY], names.THRESHOLD_MAX)
        # Absent from what an operator without probing has left.
        probe_permille = _number(data.get(names.PROBE_KEY, "0"), names.PROBE_MAX_PERMILLE)
        source = ThresholdSource(annotations[names.ANNOTATION_DECISION_SOURCE])
        decided_at = datetime.fromisoformat(annotations[names.ANNOTATION_DECIDED_AT])
        rates = annotations.get(names.ANNOTATION_DECISION_EVIDENCE)
        evidence = ThresholdEvidence.model_validate_json(rates) if rates else None
    except (KeyError, TypeError, ValueError):
        return None
    if decided_at.tzinfo is None:
        return None
    return Decision(
        batch_size=batch_size,
        source=source,
        decided_at=decided_at.astimezone(UTC),
        message=annotations.get(names.ANNOTATION_DECISION_MESSAGE, ""),
        probe_permille=probe_permille,
        evidence=evidence,
    )


def _annotations(decision: Decision) -> dict[str, str]:
    found = {
        names.ANNOTATION_DECIDED_AT: _timestamp(decision.decided_at),
        names.ANNOTATION_DECISION_SOURCE: decision.source.value,
        names.ANNOTATION_DECISION_MESSAGE: decision.message,
    }
    if decision.evidence is not None:
        found[names.ANNOTATION_DECISION_EVIDENCE] = decision.evidence.model_dump_json(by_alias=True)
    return found


def _number(text: str, largest: int) -> int:
    """Read a number as `str` writes it; raises ValueError for anything else, and outside 0 to `largest`."""
    number = int(text)
    if str(number) != text or not 0 <= number <= largest:
        raise ValueError(text)
    return number


def _timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, with fractions of a second only where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

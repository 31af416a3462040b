"""The condition `MetricsAvailable`: whether the tuner sees the load. No data is never taken for no load."""

from __future__ import annotations

from sglang_operator.api.reasons import Reason
from sglang_operator.status.observation import MetricsFacts, Observation
from sglang_operator.status.text import cut, paragraph, rfc3339, sentence
from sglang_operator.status.verdict import Verdict, Wording, false, true, unknown

_CAUSE_UNLESS_TOLD = {
    Reason.NOT_CONFIGURED: "The operator has no address of a Prometheus. Set it (in the chart: prometheus.url), or "
    "set speculation.disableThreshold.mode to Fixed.",
    Reason.METRICS_UNREACHABLE: "Prometheus can't be asked. Check its address and that the operator may reach it.",
    Reason.METRICS_INVALID: "Prometheus' answer can't be used. Check that the address is a Prometheus.",
    Reason.NO_DATA: "Prometheus knows no load metrics of these pods. Check that it scrapes them.",
    Reason.STALE: "The newest samples of these pods are too old. Check that Prometheus still scrapes them.",
}
_CAUSE_BYTES = 800
_ONLY_WITH_PODS = frozenset({Reason.NO_DATA, Reason.STALE})


def metrics_available(observation: Observation) -> Verdict:
    """Decide `MetricsAvailable`. Where metrics are not asked for, none are missing: true, `NotUsed`."""
    facts = observation.metrics
    if observation.speculates is False or (facts is not None and facts.reason is Reason.NOT_USED):
        return true(Reason.NOT_USED, "The threshold does not follow the load here, so no metrics are needed.")
    if facts is None:
        return unknown(Reason.NOT_OBSERVED, "The metrics were not looked at yet.")
    if facts.reason is Reason.FRESH:
        return true(Reason.FRESH, "The pods' load metrics are recent.")
    if facts.reason in _ONLY_WITH_PODS and not observation.answering_pods:
        return unknown(Reason.NO_PODS, "No pod answers, so there is no load to measure.")
    return _missing(facts)


def _missing(facts: MetricsFacts) -> Verdict:
    last = f"Last good sample: {rfc3339(facts.last_good_at)}." if facts.last_good_at else ""
    cause = cut(sentence(facts.message), _CAUSE_BYTES) or _CAUSE_UNLESS_TOLD[facts.reason]
    # The cause tells ages of samples, which tick.
    return false(facts.reason, paragraph(cause, "The threshold stays as it is.", last), Wording.LOG)

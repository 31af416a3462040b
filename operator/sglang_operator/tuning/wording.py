"""A comparison in words and figures, for the event, the status and the log."""

from __future__ import annotations

from sglang_operator.api.v1alpha1 import ThresholdEvidence
from sglang_operator.tuning import rule
from sglang_operator.tuning.comparison import Comparison, Gain
from sglang_operator.tuning.estimate import Difference
from sglang_operator.tuning.limits import Limits
from sglang_operator.tuning.model import Evidence
from sglang_operator.tuning.samples import BUCKETS, Bucket

_TURNING_BACK = 2


def explanation(comparison: Comparison, standing: int, age_seconds: float, limits: Limits) -> str:
    """Say what was measured, what a change would gain, and how sure that is."""
    witness = comparison.witness.difference
    rates = (
        f"At batch sizes {_bucket(witness).label}: {witness.on.value:.0f} tokens/s drafting, "
        f"{witness.off.value:.0f} tokens/s not drafting."
    )
    gain = f"No threshold does better than {rule.describe(standing)} at the present load."
    if comparison.best != standing:
        gain = (
            f"{rule.describe(comparison.best)} instead of {rule.describe(standing)} gains "
            f"{_percent(comparison.load_gain, limits)} at the present load, {_percent(comparison.span_gain, limits)} "
            "over all batch sizes of the last 15 minutes and next to them, "
            f"{_percent(comparison.peak_gain, limits)} at the worst of them."
        )
    return f"{rates} {gain} {_crossings(comparison)}The evidence is {age_seconds:.0f} s old."


def rates(comparison: Comparison, evidence: Evidence) -> ThresholdEvidence | None:
    """Return the figures behind a comparison for the status; None without a sample."""
    newest = evidence.freshness.newest_sample_at
    if newest is None:
        return None
    witness = comparison.witness.difference
    return ThresholdEvidence(
        batch_sizes=_bucket(witness).label,
        drafting_tokens_per_second=round(witness.on.value),
        not_drafting_tokens_per_second=round(witness.off.value),
        gain_percent=max(0, round(100 * comparison.load_gain.value)),
        sampled_at=f"{newest:%Y-%m-%dT%H:%M:%SZ}",
    )


def _bucket(difference: Difference) -> Bucket:
    return next(b for b in BUCKETS if b.high is None or round(difference.batch_size) <= b.high)


def _percent(gain: Gain, limits: Limits) -> str:
    return f"{100 * gain.value:.1f} % (± {100 * limits.deviations * gain.deviation:.1f})"


def _crossings(comparison: Comparison) -> str:
    turns = comparison.crossings
    if len(turns) < _TURNING_BACK:
        return ""
    what = "not drafting" if comparison.starts_off else "drafting"
    sizes = ", ".join(str(turn) for turn in turns)
    return (
        f"The better mode changes more than once ({what} first, then at {sizes} requests); one threshold can't follow "
        "that, this one loses least. "
    )

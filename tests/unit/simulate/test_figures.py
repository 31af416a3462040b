"""The figures of a run, on sums that can be checked by hand."""

from __future__ import annotations

import pytest

from sglang_operator.simulate.figures import Figures, figures
from sglang_operator.simulate.ledger import Ledger, Span


def span(begin: float, seconds: float, *, drafting: bool, batch: int = 8, probing: bool = False) -> Span:
    """Drafting yields 80 tokens/s, not drafting 100."""
    rate = 80.0 if drafting else 100.0
    return Span(begin, batch, 10, seconds, rate * seconds, drafting, probing, rate, 80.0, 100.0)


def summed(ledger: Ledger, *, threshold: int = 9) -> Figures:
    return figures(ledger, [(0, 8), (5, threshold), (10, threshold)], by_threshold=True)


def filled(seconds: int, *, wrong_until: int, settling: float = 0.0) -> Ledger:
    """A second each: drafting, which is the worse mode here, until a moment."""
    ledger = Ledger(settling)
    for second in range(seconds):
        if second % 5 == 0:
            ledger.mark(second)
        ledger.add(span(second, 1.0, drafting=second < wrong_until))
    ledger.mark(seconds)
    return ledger


def test_regret_is_decode_time_lost_at_equal_work() -> None:
    found = summed(filled(200, wrong_until=50))
    assert found.whole_regret_percent == pytest.approx(100 * 50 * 0.2 / 200)
    assert found.regret_percent == found.whole_regret_percent
    assert found.worst_60s_regret_percent == pytest.approx(100 * 50 * 0.2 / 60, abs=0.01)
    assert found.output_tokens == 50 * 80 + 150 * 100


def test_what_comes_before_settling_counts_in_the_whole_run_alone() -> None:
    found = summed(filled(200, wrong_until=50, settling=50))
    assert (found.regret_percent, found.worst_60s_regret_percent) == (0, 0)
    assert found.whole_regret_percent == 5


def test_settled_is_the_first_minute_with_little_regret() -> None:
    assert summed(filled(200, wrong_until=50)).settled_seconds == 45, "6 s of 60 may be a fifth slower"
    assert summed(filled(200, wrong_until=200)).settled_seconds is None


def test_probes_cost_what_the_threshold_s_mode_would_have_saved() -> None:
    ledger = Ledger()
    ledger.mark(0)
    ledger.add(span(0, 90, drafting=False))
    ledger.add(span(90, 5, drafting=True, probing=True))
    ledger.add(span(95, 5, drafting=False, probing=True))
    ledger.mark(100)
    found = figures(ledger, [(0, 8), (100, 8)], by_threshold=True)
    assert found.probe_percent == pytest.approx(100 * 5 * 0.2 / 100), "a probe of the faster mode costs nothing"


def test_the_worst_batch_size_is_judged_by_the_last_threshold() -> None:
    ledger = filled(200, wrong_until=50)
    assert summed(ledger, threshold=8).worst_batch_loss_percent == 0
    assert summed(ledger, threshold=9).worst_batch_loss_percent == 20
    assert summed(ledger, threshold=0).worst_batch_loss_percent == 20
    assert summed(ledger, threshold=9).threshold_changes == 1

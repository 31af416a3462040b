"""Which step comes next on the decode off path, and when logged rows are due."""

from __future__ import annotations

from sglang_specpatch.runtime.offpath_steps import FLUSH_STEPS, LogBook, Resumption, Step


class Slots:
    """A tensor of request slots."""

    def __init__(self, *slots: int) -> None:
        self._slots = list(slots)

    def tolist(self) -> list[int]:
        """Return plain numbers."""
        return self._slots


def test_drafting_resumes_after_one_more_single_token() -> None:
    steps, batch = Resumption(), Slots(1, 2)
    wanted = [True, False, False, True, True, True, False, True, True]
    assert [steps.choose(drafting, batch) for drafting in wanted] == [
        Step.DRAFT,
        Step.DECODE,
        Step.DECODE,
        Step.RESUME,
        Step.DRAFT,
        Step.DRAFT,
        Step.DECODE,
        Step.RESUME,
        Step.DRAFT,
    ]


def test_switching_every_step_never_drafts_from_nothing() -> None:
    steps, batch = Resumption(), Slots(1)
    chosen = [steps.choose(step % 2 == 0, batch) for step in range(10)]
    assert Step.DRAFT not in chosen[1:]


def test_requests_that_were_just_prefilled_need_no_more_than_that() -> None:
    steps = Resumption()
    steps.choose(False, Slots(1, 2))
    steps.prefilled(Slots(2, 3))
    assert steps.choose(True, Slots(2, 3)) is Step.DRAFT


def test_one_request_that_waits_is_enough() -> None:
    steps = Resumption()
    steps.choose(False, Slots(1, 2))
    steps.choose(False, Slots(2))
    steps.prefilled(Slots(3))
    assert steps.choose(True, Slots(2, 3)) is Step.RESUME


def test_a_batch_that_comes_back_to_decoding_waits_again() -> None:
    steps, batch = Resumption(), Slots(1)
    assert [steps.choose(drafting, batch) for drafting in (False, True, False, True)] == [
        Step.DECODE,
        Step.RESUME,
        Step.DECODE,
        Step.RESUME,
    ]


def test_rows_go_one_behind_the_other_until_they_are_due() -> None:
    book = LogBook(capacity=FLUSH_STEPS * 4)
    places = [book.add(rows) for rows in (4, 1, 3)]
    assert places == [slice(0, 4), slice(4, 5), slice(5, 8)]
    due = [book.due]
    for _ in range(FLUSH_STEPS - 3):
        book.add(1)
        due.append(book.due)
    assert due == [False] * (FLUSH_STEPS - 3) + [True]
    book.clear()
    assert (book.rows, book.due) == (0, False)
    assert book.add(2) == slice(0, 2)


def test_a_full_log_takes_no_more() -> None:
    book = LogBook(capacity=4)
    book.add(3)
    assert book.fits(1)
    assert not book.fits(2)


def test_a_prefill_that_left_nothing_to_draft_from_waits_for_one_more_step() -> None:
    steps = Resumption()
    steps.unprepared(Slots(1, 2))
    steps.prefilled(Slots(2))
    assert [steps.choose(True, Slots(2, 1)), steps.choose(True, Slots(2, 1))] == [Step.RESUME, Step.DRAFT]


def test_a_chunk_that_left_nothing_is_made_up_for_by_the_next_chunk() -> None:
    steps = Resumption()
    steps.unprepared(Slots(1))
    steps.prefilled(Slots(1))
    assert steps.choose(True, Slots(1)) is Step.DRAFT

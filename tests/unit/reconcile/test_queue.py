"""The work queue: one pass at a time for a service, none lost, failures spaced out."""

from __future__ import annotations

import asyncio

import pytest

from sglang_operator.api.names import ServiceKey
from sglang_operator.reconcile.queue import LAST_RETRY_SECONDS, WorkQueue

FIRST, SECOND = ServiceKey("team", "first"), ServiceKey("team", "second")


async def take(queue: WorkQueue) -> ServiceKey:
    return await asyncio.wait_for(queue.take(), timeout=2)


async def is_empty(queue: WorkQueue) -> bool:
    try:
        await asyncio.wait_for(queue.take(), timeout=0.05)
    except TimeoutError:
        return True
    return False


async def test_a_waiting_service_is_kept_once() -> None:
    queue = WorkQueue()
    queue.add(FIRST)
    queue.add(FIRST)
    queue.add(SECOND)
    assert [await take(queue), await take(queue)] == [FIRST, SECOND]
    assert await is_empty(queue)


async def test_an_event_during_a_pass_brings_exactly_one_more_pass() -> None:
    queue = WorkQueue()
    queue.add(FIRST)
    key = await take(queue)
    queue.add(FIRST)
    queue.add(FIRST)
    assert await is_empty(queue), "a second pass over the same service started beside the first"
    queue.done(key)
    assert await take(queue) == FIRST
    queue.done(FIRST)
    assert await is_empty(queue)


async def test_an_earlier_planned_pass_wins_over_a_later_one() -> None:
    queue = WorkQueue()
    queue.add_after(FIRST, 0.02)
    queue.add_after(FIRST, 60)
    assert await take(queue) == FIRST
    queue.done(FIRST)
    assert await is_empty(queue)


async def test_a_pass_asked_for_now_replaces_a_planned_one() -> None:
    queue = WorkQueue()
    queue.add_after(FIRST, 0.03)
    queue.add(FIRST)
    assert await take(queue) == FIRST
    queue.done(FIRST)
    await asyncio.sleep(0.05)
    assert await is_empty(queue)


async def test_failures_are_repeated_later_and_later_up_to_a_limit() -> None:
    queue = WorkQueue()
    delays = [queue.retry(FIRST) for _ in range(12)]
    queue.close()
    assert 0.8 <= delays[0] <= 1.2
    assert delays[3] > 2 * delays[1] * 0.8
    assert max(delays) <= LAST_RETRY_SECONDS * 1.2
    assert min(delays[-3:]) >= LAST_RETRY_SECONDS * 0.8


async def test_success_forgets_failures() -> None:
    queue = WorkQueue()
    for _ in range(5):
        queue.retry(FIRST)
    queue.succeeded(FIRST)
    assert queue.retry(FIRST) <= 1.2
    queue.close()


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
async def test_one_failing_service_does_not_delay_another(order: tuple[ServiceKey, ServiceKey]) -> None:
    failing, healthy = order
    queue = WorkQueue()
    queue.retry(failing)
    queue.add(healthy)
    assert await take(queue) == healthy
    queue.close()

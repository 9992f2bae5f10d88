"""Following one publisher's stream: order, gaps, long replays, silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from event_publisher import EventPublisher, block, publisher

from router import subscription as subscription_module
from router.events import EventBatch
from router.subscription import EventSource, EventSubscription


class Record:
    """What a subscription told, in order: batch timestamps and marks."""

    def __init__(self) -> None:
        self.told: list[float | str] = []
        self._changed = asyncio.Event()

    def note(self, what: float | str) -> None:
        self.told.append(what)
        self._changed.set()

    def batch(self, batch: EventBatch) -> None:
        self.note(batch.ts)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not done():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture(autouse=True)
def no_checks_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each replay has its one cause, however slow the machine."""
    monkeypatch.setattr(subscription_module, "QUIET_S", 3600.0)


@asynccontextmanager
async def subscribed(source: EventSource) -> AsyncIterator[tuple[EventSubscription, Record]]:
    record = Record()
    subscription = EventSubscription(
        source,
        on_batch=record.batch,
        on_lost=lambda why: record.note("lost"),
        on_garbage=lambda why: record.note("lost"),
        on_restart=lambda: record.note("restart"),
        on_caught_up=lambda: None,
    )
    task = asyncio.create_task(subscription.run())
    try:
        async with asyncio.timeout(30):
            await subscription.caught_up.wait()
        yield subscription, record
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        subscription.close()


async def published(engine: EventPublisher, number: int, *, live: bool = True) -> None:
    for _ in range(number):
        await engine.publish(block(1), live=live)


async def test_batches_come_once_and_in_order() -> None:
    async with publisher() as engine:
        await published(engine, 3)
        async with subscribed(engine.source) as (_, record):
            await engine.joined()
            await published(engine, 2)
            await published(engine, 2, live=False)
            await published(engine, 1)
            await record.until(lambda: len(record.told) == 8)
            assert record.told == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


async def test_what_was_missed_before_a_silence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "QUIET_S", 0.01)
    async with publisher() as engine, subscribed(engine.source) as (subscription, record):
        await engine.publish(block(1), live=False)
        await record.until(lambda: record.told == [1.0])
        assert subscription.status.replayed_batches == 1


async def test_a_replay_with_holes_is_asked_for_again() -> None:
    async with publisher() as engine:
        await published(engine, 6)
        engine.holes = {2, 4}
        async with subscribed(engine.source) as (_, record):
            assert record.told == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
            assert engine.replay_requests == [0, 2]


async def test_a_stream_that_began_before_the_buffer_is_partly_lost() -> None:
    async with publisher(buffer=2) as engine:
        await published(engine, 5)
        async with subscribed(engine.source) as (subscription, record):
            assert record.told == ["lost", 4.0, 5.0]
            assert subscription.status.next_seq == 5


async def test_without_a_replay_a_gap_is_a_loss() -> None:
    async with publisher() as engine, subscribed(engine.source._replace(replay_endpoint=None)) as (_, record):
        await engine.joined()
        await published(engine, 1)
        await published(engine, 1, live=False)
        await published(engine, 1)
        await record.until(lambda: len(record.told) == 3)
        assert record.told == [1.0, "lost", 3.0]


async def test_a_stalled_replay_does_not_stop_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "REPLAY_TIMEOUT_S", 0.05)
    async with publisher() as engine:
        engine.replaying.clear()
        async with subscribed(engine.source) as (_, record):
            await engine.joined()
            await published(engine, 1)
            await published(engine, 1, live=False)
            await published(engine, 1)
            await record.until(lambda: len(record.told) == 3)
            assert record.told == [1.0, "lost", 3.0]


async def test_frames_that_are_no_batch_are_ignored() -> None:
    async with publisher() as engine, subscribed(engine.source) as (_, record):
        await engine.joined()
        await engine.send_frames(b"one frame")
        await engine.send_frames(b"short", b"")
        await published(engine, 1)
        await record.until(lambda: record.told == [1.0])


async def test_a_batch_garbled_on_the_way_is_taken_from_the_replay() -> None:
    async with publisher() as engine, subscribed(engine.source) as (subscription, record):
        await engine.joined()
        seq = await engine.publish(block(1), live=False)
        await engine.send(seq, b"\xc1")
        await record.until(lambda: record.told == [1.0])
        assert subscription.status.undecodable_batches == 0


async def test_a_new_publisher_is_told_by_the_content_of_its_batches() -> None:
    async with publisher() as engine:
        await published(engine, 2)
        async with subscribed(engine.source) as (_, record):  # all by replay, nothing live yet
            await engine.joined()
            await engine.send_again(1)
            engine.restart()
            await published(engine, 2)
            await record.until(lambda: len(record.told) == 5)
            assert record.told == [1.0, 2.0, "restart", 3.0, 4.0]


async def test_a_straggler_of_a_lost_stretch_is_no_new_publisher() -> None:
    async with publisher(buffer=1) as engine:
        await published(engine, 3)
        async with subscribed(engine.source) as (_, record):
            await engine.joined()
            await engine.send(0, msgspec.msgpack.encode([1.0, [], 0]))
            await published(engine, 1)
            await record.until(lambda: len(record.told) == 3)
            assert record.told == ["lost", 3.0, 4.0]


async def test_a_new_publisher_is_told_after_a_loss_too() -> None:
    async with publisher(buffer=1) as engine, subscribed(engine.source) as (_, record):
        await engine.joined()
        await published(engine, 2)
        await published(engine, 2, live=False)
        await published(engine, 1)
        await record.until(lambda: record.told[-1:] == [5.0])
        engine.restart()
        await published(engine, 1)
        await record.until(lambda: record.told[-1:] == [6.0])
        assert record.told == [1.0, 2.0, "lost", 5.0, "restart", 6.0]


async def test_an_unreadable_batch_may_come_twice() -> None:
    async with publisher() as engine, subscribed(engine.source) as (subscription, record):
        await engine.joined()
        bad = await engine.publish_raw(b"\xc1")
        await record.until(lambda: record.told == ["lost"])
        await engine.send_again(bad)
        await published(engine, 1)
        await record.until(lambda: record.told[-1:] == [1.0])
        assert record.told == ["lost", 1.0]
        assert subscription.status.undecodable_batches == 1


async def test_the_topic_selects_the_stream() -> None:
    async with publisher() as engine, subscribed(engine.source._replace(topic="kv")) as (_, record):
        await engine.joined()  # a topic is a prefix
        await published(engine, 1)
        await record.until(lambda: record.told == [1.0])

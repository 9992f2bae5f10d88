"""A simulated engine's publisher, followed by the relay's own subscription."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from deployments.engines.ports import claim_ports
from deployments.engines.simulated_publisher import SimulatedPublisher
from router.subscription import EventSubscription


def batch(number: float) -> bytes:
    return msgspec.msgpack.encode([number, [{"type": "AllBlocksCleared"}], 0])


@asynccontextmanager
async def published(replay_batches: int = 100, ports=None) -> AsyncIterator[SimulatedPublisher]:
    publisher = SimulatedPublisher(ports, replay_batches)
    try:
        yield publisher
    finally:
        await publisher.aclose()


@asynccontextmanager
async def followed(publisher: SimulatedPublisher) -> AsyncIterator[asyncio.Queue[float | str]]:
    """Batch timestamps in order, and "lost"."""
    told: asyncio.Queue[float | str] = asyncio.Queue()
    subscription = EventSubscription(
        publisher.source,
        on_batch=lambda batch: told.put_nowait(batch.ts),
        on_lost=lambda why: told.put_nowait("lost"),
        on_garbage=lambda why: told.put_nowait("lost"),
        on_restart=lambda: told.put_nowait("restart"),
        on_caught_up=lambda: None,
    )
    task = asyncio.create_task(subscription.run())
    try:
        async with asyncio.timeout(60):
            await subscription.caught_up.wait()
            yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        subscription.close()


async def take(told: asyncio.Queue[float | str], count: int) -> list[float | str]:
    return [await told.get() for _ in range(count)]


async def test_a_subscriber_that_comes_later_is_given_what_it_missed_and_then_what_comes():
    async with published() as publisher:
        for number in range(3):
            publisher.publish(batch(number))
        async with followed(publisher) as told:
            publisher.publish(batch(3))
            assert await take(told, 4) == [0, 1, 2, 3]


async def test_what_the_buffer_no_longer_holds_is_lost_by_name():
    async with published(replay_batches=2) as publisher:
        for number in range(5):
            publisher.publish(batch(number))
        async with followed(publisher) as told:
            assert await take(told, 3) == ["lost", 3, 4]


async def test_two_subscribers_get_the_same():
    async with published() as publisher:
        publisher.publish(batch(0))
        async with followed(publisher) as one, followed(publisher) as two:
            publisher.publish(batch(1))
            assert await take(one, 2) == await take(two, 2) == [0, 1]


async def test_garbage_at_the_replay_socket_is_passed_over():
    import zmq.asyncio

    async with published() as publisher:
        context = zmq.asyncio.Context()
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(publisher.source.replay_endpoint)
            await dealer.send_multipart([b"what", b"is", b"this", b"now"])
            publisher.publish(batch(0))
            async with followed(publisher) as told:
                assert await take(told, 1) == [0]
        context.destroy(linger=0)


async def test_it_listens_where_it_is_told():
    ports = claim_ports(24_100)
    try:
        async with published(ports=ports) as publisher:
            assert publisher.source.endpoint == f"tcp://127.0.0.1:{ports.events}"
            assert publisher.source.replay_endpoint == f"tcp://127.0.0.1:{ports.replay}"
    finally:
        ports.lock.close()

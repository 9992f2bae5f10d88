"""The subscriber's socket that is awaited by its descriptor, with a real publisher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq

from router.event_socket import EventSocket

GENEROUS_S = 30.0


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[Any, EventSocket]]:
    """A publisher and a socket that has joined it."""
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    publisher.bind("tcp://127.0.0.1:*")
    endpoint = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
    socket = EventSocket(context, endpoint, "topic", 1000)
    try:
        await asyncio.to_thread(publisher.recv)  # its subscription
        yield publisher, socket
    finally:
        socket.close()
        publisher.close(linger=0)
        context.term()


async def test_what_is_published_comes_in_order_however_it_was_waited_for() -> None:
    async with joined() as (publisher, socket):
        first = asyncio.create_task(socket.receive(GENEROUS_S))
        await asyncio.sleep(0.01)
        for number in range(500):
            publisher.send_multipart((b"topic", b"%d" % number))
        got = [await first] + [await socket.receive(GENEROUS_S) for _ in range(499)]
        assert got == [[b"topic", b"%d" % number] for number in range(500)]


async def test_silence_is_none_and_what_comes_later_is_not_lost() -> None:
    async with joined() as (publisher, socket):
        assert await socket.receive(0.01) is None
        publisher.send_multipart((b"topic", b"late"))
        assert await socket.receive(GENEROUS_S) == [b"topic", b"late"]


async def test_a_waiter_that_goes_leaves_the_message_to_the_next() -> None:
    async with joined() as (publisher, socket):
        gone = asyncio.create_task(socket.receive(GENEROUS_S))
        await asyncio.sleep(0.01)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        publisher.send_multipart((b"topic", b"next"))
        assert await socket.receive(GENEROUS_S) == [b"topic", b"next"]


async def test_messages_that_nobody_takes_do_not_keep_the_loop_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    look = EventSocket._on_readable

    def counted(self: EventSocket) -> None:
        nonlocal calls
        calls += 1
        look(self)

    monkeypatch.setattr(EventSocket, "_on_readable", counted)
    async with joined() as (publisher, socket):
        assert await socket.receive(0.01) is None  # it watches now
        seen = calls
        for _ in range(20):
            publisher.send_multipart((b"topic", b"x"))
            await asyncio.sleep(0.002)
        assert calls - seen <= 1
        assert [await socket.receive(GENEROUS_S) for _ in range(20)] == [[b"topic", b"x"]] * 20

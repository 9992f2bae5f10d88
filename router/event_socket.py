"""A subscriber's socket, awaited by its file descriptor.

`zmq.asyncio` makes futures and polls for every message, five times the CPU of receiving it. ZMQ's descriptor
only says that something happened: whoever waits for it must first have taken all that is there, and until
then it stays readable.
"""

from __future__ import annotations

import asyncio

from zmq.constants import Flag, SocketType
from zmq.error import Again
from zmq.sugar.context import Context
from zmq.sugar.socket import Socket

__all__ = ["EventSocket"]


class EventSocket:
    """A SUB socket in the running loop; one waiter at a time. hwm: messages that may wait in it."""

    def __init__(self, context: Context[Socket[bytes]], endpoint: str, topic: str, hwm: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket: Socket[bytes] = Socket(context, SocketType.SUB)
        self._socket.linger = 0
        self._socket.set_hwm(hwm)
        self._socket.subscribe(topic.encode())
        self._fd = int(self._socket.FD)
        self._is_watched = False
        self._waiter: asyncio.Future[bool] | None = None
        self._socket.connect(endpoint)

    async def receive(self, timeout_s: float) -> list[bytes] | None:
        """The next message's frames; None where none came in time.

        Raises:
            ZMQError: the socket is broken.
        """
        frames = self.take()
        deadline = self._loop.time() + timeout_s
        while frames is None:
            if not await self._readable(deadline):
                return self.take()
            frames = self.take()
        return frames

    def take(self) -> list[bytes] | None:
        """The next message's frames, if it is here already."""
        try:
            frames: list[bytes] = self._socket.recv_multipart(Flag.NOBLOCK)
        except Again:
            return None
        return frames

    async def _readable(self, deadline: float) -> bool:
        """Whether something happened before `deadline`, by the loop's clock."""
        if not self._is_watched:
            self._loop.add_reader(self._fd, self._on_readable)
            self._is_watched = True
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._wake, False)
        try:
            return await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _on_readable(self) -> None:
        if self._waiter is None:
            self._unwatch()  # nobody takes it now: the loop would call again and again
        else:
            self._wake(True)

    def _wake(self, is_readable: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(is_readable)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._loop.remove_reader(self._fd)
            self._is_watched = False

    def close(self) -> None:
        self._unwatch()
        self._socket.close(linger=0)

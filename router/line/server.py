"""The server's end of the lines."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

from router.line.frames import FAILED, MAGIC, OK, End, Frame, LineAddress

__all__ = ["LineServer"]

log = logging.getLogger("sightline.line")

TOKEN_BYTES = 32
HELLO_TIMEOUT_S = 5.0
#: Connections that have not greeted yet, at most.
MAX_STRANGERS = 1024

#: Serves a method's call. What it raises is told to the caller as text.
Handler = Callable[[int, bytes], Awaitable[bytes]]


class LineServer:
    """Listens on one address and serves whoever knows the token.

    What was asked is served to its end, even where the asker has gone meanwhile.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._listener: asyncio.Server | None = None
        self._strangers: set[_Guest] = set()
        self._guests: set[_Guest] = set()

    async def listen(self, host: str, ports: Sequence[int] = (0,)) -> LineAddress:
        """Listen on the first of `ports` that is free (0: any).

        Raises:
            OSError: none is free, or `host` is no address of this machine.
        """
        for last, port in enumerate(ports, 1):
            try:
                self._listener = await asyncio.get_running_loop().create_server(self._receive, host, port)
                break
            except OSError:
                if last == len(ports):
                    raise
        assert self._listener is not None, "no port was given"
        return LineAddress(host, self._listener.sockets[0].getsockname()[1], self._token)

    def _receive(self) -> _Guest:
        return _Guest(self._handler, MAGIC + self._token, self._strangers, self._guests)

    @property
    def num_lines(self) -> int:
        """Clients connected now."""
        return len(self._guests)

    async def close(self) -> None:
        """Stop listening, close every connection, and cancel what is being served."""
        if self._listener is None:
            return
        self._listener.close()
        for guest in (*self._strangers, *self._guests):
            guest.close()
        await self._listener.wait_closed()


class _Guest(End):
    """One connection. It is in `strangers` until it has greeted, then in `guests`, then in neither."""

    def __init__(self, handler: Handler, wanted: bytes, strangers: set[_Guest], guests: set[_Guest]) -> None:
        super().__init__()
        self._handler = handler
        self._wanted = wanted
        self._strangers, self._guests = strangers, guests
        self._greeting = b""
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._strangers) >= MAX_STRANGERS:
            self._turn_away("too many have not greeted yet")
            return
        self._strangers.add(self)
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._turn_away, "no greeting")

    def data_received(self, data: bytes) -> None:
        if self in self._guests:
            super().data_received(data)
        else:
            self._greet(data)

    def _greet(self, data: bytes) -> None:
        """A client waits for its welcome, so that nothing may follow the greeting."""
        self._greeting += data[: len(self._wanted) + 1]
        if len(self._greeting) < len(self._wanted):
            return
        if not hmac.compare_digest(self._greeting, self._wanted):
            self._turn_away("a wrong greeting")
            return
        self._greeting = b""
        self._leave()
        self._guests.add(self)
        assert self._transport is not None
        self._transport.write(MAGIC)

    def _turn_away(self, why: str) -> None:
        log.warning("direct line: %s turned away: %s", self.peer, why)
        self.abort()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._strangers.discard(self)
        self._guests.discard(self)

    def take(self, frame: Frame) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(frame))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _serve(self, frame: Frame) -> None:
        try:
            answer, status = await self._handler(frame.code, frame.body), OK
        except Exception as error:  # whatever it is: it is the caller's to know, and the line's to survive
            log.debug("direct line: call %d of %s failed: %r", frame.code, self.peer, error)
            answer, status = f"{type(error).__name__}: {error}".encode(), FAILED
        self.send(Frame(frame.call_id, status, answer))

    def pause_writing(self) -> None:
        """It asks and does not listen: no more questions until it does."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def close(self) -> None:
        for task in self._calls:
            task.cancel()
        self.abort()

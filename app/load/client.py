"""An HTTP/1.1 client that costs next to nothing: prepared bytes out, parsed in C, one future a request.

Its own, because what is measured shares the machine with it: httpx takes several milliseconds of processor
time for a short stream, aiohttp about one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

from app.load.stream import Body, Whole, Words
from app.load.target import Target

__all__ = ["Client", "Exchange"]

Reader = Words | Body

KEPT_HEADERS = (b"x-sightline-", b"server")


@dataclass(eq=False)
class Exchange:
    """One request and what came of it. Times are those of `time.perf_counter()`, in seconds.

    failed: "" or how it went wrong (`connect`, `timeout`, `closed`, `protocol`, or as the answer says).
    is_resent: on a second connection, because a kept one was closed before any answer.
    """

    reader: Reader
    done: asyncio.Future[None]
    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    failed: str = ""
    bytes_out: int = 0
    bytes_in: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    error: Body | None = None
    is_resent: bool = False

    def finish(self, failed: str, now: float) -> None:
        if self.done.done():
            return
        self.ended = now
        if not failed and self.error is None:
            self.reader.close()
        self.failed = failed or self.reader.failed
        self.done.set_result(None)


class _Connection(asyncio.Protocol):
    """One kept-alive connection, which carries one exchange at a time. httptools calls the `on_` methods."""

    def __init__(self, idle: list[_Connection]) -> None:
        self._idle = idle
        self._parser: Any = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._now = 0.0
        self._ends_with_connection = True
        self.transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, exchange: Exchange, parts: Sequence[bytes]) -> None:
        assert self.transport is not None
        self._exchange = exchange
        self._ends_with_connection = True
        self.transport.writelines(parts)

    def abort(self, failed: str) -> None:
        self._now = time.perf_counter()
        self._end(failed)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._exchange is None:
            return
        self._exchange.bytes_in += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self.abort("protocol")
            raise  # a fault of this program, not of the server
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort("protocol")

    def connection_lost(self, error: Exception | None) -> None:
        exchange = self._exchange
        if self in self._idle:
            self._idle.remove(self)
        if exchange is not None:
            self._now = time.perf_counter()
            is_whole = error is None and exchange.status and self._ends_with_connection
            self._end("" if is_whole else "closed")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        if name.startswith(KEPT_HEADERS) and self._exchange is not None:
            self._exchange.headers[name.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return  # early hints, or a proxy's `continue`: the answer is still to come
        exchange.status = status
        if status != 200:
            exchange.error = Body()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            (exchange.error or exchange.reader).feed(body, self._now)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return  # the answer is still to come
        keeps = self._parser.should_keep_alive()
        self._end("")
        if keeps and self.is_open:
            self._idle.append(self)
        elif self.transport is not None:
            self.transport.close()

    def _end(self, failed: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish(failed, self._now)


class Client:
    """Requests to one target, over connections that it keeps; belongs to one running loop."""

    def __init__(self, target: Target, *, timeout_s: float = 60.0) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._post = target.head("POST", "/chat/completions")
        self._tls = ssl.create_default_context() if target.is_tls else None

    async def chat(self, body: Sequence[bytes], *, is_streamed: bool, keeps_text: bool = False) -> Exchange:
        """Post one prepared body, given in parts. Never raises for what the network does: see `failed`."""

        def reader() -> Reader:
            return Words(keeps_text=keeps_text) if is_streamed else Whole()

        return await self._ask(self._post, body, reader)

    async def get(self, path: str) -> Exchange:
        """A small resource of the API, such as `/models`; its body is in `reader`, or in `error`."""
        return await self._ask(self._target.head("GET", path), (), Body)

    def close(self) -> None:
        for connection in list(self._idle):
            connection.abort("closed")

    async def _ask(self, head: bytes, body: Sequence[bytes], make_reader: Callable[[], Reader]) -> Exchange:
        parts = [b"%b%d\r\n\r\n" % (head, sum(map(len, body))), *body]
        began = time.perf_counter()
        exchange, was_kept = await self._try(parts, make_reader())
        if exchange.failed == "closed" and was_kept and not exchange.bytes_in:
            # The server gave up an idle connection while the request was on its way: as any client would.
            exchange, _ = await self._try(parts, make_reader())
            exchange.is_resent = True
        exchange.sent = began  # whoever asks waits for a connection, too
        return exchange

    async def _try(self, parts: Sequence[bytes], reader: Reader) -> tuple[Exchange, bool]:
        """One exchange, and whether its connection had carried others."""
        loop = asyncio.get_running_loop()
        exchange = Exchange(reader, loop.create_future())
        try:
            connection, was_kept = await self._connection()
        except OSError as error:
            exchange.finish(f"connect: {error.strerror or error}", time.perf_counter())
            return exchange, False
        exchange.bytes_out = sum(map(len, parts))
        connection.send(exchange, parts)
        timer = loop.call_later(self._timeout_s, connection.abort, "timeout")
        try:
            await exchange.done
        except asyncio.CancelledError:
            connection.abort("cancelled")
            raise
        finally:
            timer.cancel()
        return exchange, was_kept

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection, True
        loop = asyncio.get_running_loop()
        made = loop.create_connection(
            lambda: _Connection(self._idle), self._target.host, self._target.port, ssl=self._tls
        )
        try:
            return (await asyncio.wait_for(made, self._timeout_s))[1], False
        except TimeoutError:
            raise OSError(f"no connection within {self._timeout_s:g} s") from None

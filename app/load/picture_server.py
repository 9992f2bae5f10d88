"""An image server in a process of its own: any number of different pictures, made from a few.

`GET /<run>/<number>.jpg` is picture `number`; `run` is only there to make addresses new. Ranges are honoured,
connections kept.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import cast

import httptools

from app.interrupts import interrupts_unheard
from app.load.errors import UsageError
from app.load.pictures import Picture

__all__ = ["served"]

_PATH = re.compile(rb"/[^/?]+/(\d{1,12})\.jpg(?:\?.*)?$")
_RANGE = re.compile(rb"bytes=(\d{1,12})-(\d{0,12})$")
_NOT_THERE = b"HTTP/1.1 416 Range Not Satisfiable\r\ncontent-range: bytes */%d\r\ncontent-length: 0\r\n\r\n"
START_TIMEOUT_S = 60.0


@contextmanager
def served(pictures: list[Picture], bind: str) -> Iterator[tuple[int, int]]:
    """The server's port and process id; it ends with the block.

    Raises:
        UsageError: the address to bind to is not this machine's.
    """
    try:
        listening = socket.create_server((bind, 0), backlog=512)
    except OSError as error:
        raise UsageError(f"--picture-bind {bind}: {error.strerror or error}") from None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(pictures, listening, theirs), daemon=True)
    with interrupts_unheard():
        process.start()
    theirs.close()
    try:
        if not ours.poll(START_TIMEOUT_S) or ours.recv() != "ready":
            raise UsageError(f"the image server did not start within {START_TIMEOUT_S:g} s")
        yield listening.getsockname()[1], process.pid or 0
    finally:
        process.terminate()
        process.join()
        ours.close()
        listening.close()


class _Requests(asyncio.Protocol):
    """One connection; httptools calls the `on_` methods."""

    def __init__(self, pictures: list[Picture]) -> None:
        self._pictures = pictures
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._range: re.Match[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.close()

    def on_message_begin(self) -> None:
        self._path, self._range = b"", None

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"range":
            self._range = _RANGE.match(value)

    def on_message_complete(self) -> None:
        assert self._transport is not None
        found = _PATH.match(self._path)
        if found is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        number = int(found[1])
        self._answer(self._pictures[number % len(self._pictures)], number)
        if not self._parser.should_keep_alive():
            self._transport.close()

    def _answer(self, picture: Picture, number: int) -> None:
        assert self._transport is not None
        head, size = picture.stamped(number), len(picture.head) + len(picture.tail)
        first, last = 0, size - 1
        if self._range is not None:
            first, last = int(self._range[1]), min(int(self._range[2] or last), last)
        status = b"200 OK" if self._range is None else b"206 Partial Content"
        if first > last:
            self._transport.write(_NOT_THERE % size)
            return
        lines = b"HTTP/1.1 %b\r\ncontent-type: image/jpeg\r\naccept-ranges: bytes\r\ncontent-length: %d\r\n"
        about = lines % (status, last - first + 1)
        if self._range is not None:
            about += b"content-range: bytes %d-%d/%d\r\n" % (first, last, size)
        body = head + picture.tail if first < len(head) else picture.tail
        skipped = 0 if first < len(head) else len(head)
        self._transport.writelines([about, b"\r\n"])
        if self._parser.get_method() != b"HEAD":
            self._transport.write(memoryview(body)[first - skipped : last + 1 - skipped])


def _serve(pictures: list[Picture], listening: socket.socket, ready: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Requests(pictures), sock=listening)
        ready.send("ready")
        # Ends with its parent, whatever ends that: the pipe closes.
        ended = asyncio.Event()
        loop.add_reader(ready.fileno(), ended.set)
        async with server:
            await ended.wait()

    asyncio.run(run())

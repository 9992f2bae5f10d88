"""What both ends of a line share: its words, its frames, its errors.

LineError
+-- LineDown        refused, closed, or broken: the call may or may not have been served
+-- BodyTooLarge    nothing was sent
+-- CallFailed      the server's handler raised
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from dataclasses import dataclass, field
from typing import NamedTuple, cast

__all__ = [
    "FAILED",
    "MAGIC",
    "MAX_BODY_BYTES",
    "OK",
    "BodyTooLarge",
    "CallFailed",
    "End",
    "Frame",
    "LineAddress",
    "LineDown",
    "LineError",
]

log = logging.getLogger("sightline.line")

#: The last digit is the version: ends of different versions do not talk.
MAGIC = b"SLINE\x01"
#: Of one body: a table of 64 M blocks.
MAX_BODY_BYTES = 1 << 29
OK, FAILED = 0, 1
#: A peer whose node vanished without a word is noticed after about so long.
DEAD_PEER_S = 10

_HEADER = struct.Struct("<IIB")
#: Below it, one write of header and body together is cheaper than two.
_SMALL_BODY = 1 << 16


class LineError(Exception):
    """A call that was not served by the line."""


class LineDown(LineError):
    """There is no connection, or it broke during the call."""


class BodyTooLarge(LineError):
    """The body exceeds what one frame may hold."""


class CallFailed(LineError):
    """The server's handler raised; the text names what."""


@dataclass(frozen=True, slots=True)
class LineAddress:
    """Where a server listens, and what it wants to hear first."""

    host: str
    port: int
    token: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Frame(NamedTuple):
    """One call, or one answer. code: its method, or its status."""

    call_id: int
    code: int
    body: bytes


class Frames:
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises:
            BodyTooLarge: one announces more than it may hold.
        """
        buffer, frames, at = self._buffer, [], 0
        buffer += data
        while len(buffer) - at >= _HEADER.size:
            length, call_id, code = _HEADER.unpack_from(buffer, at)
            if length > MAX_BODY_BYTES:
                raise BodyTooLarge(f"a frame of {length} bytes; at most {MAX_BODY_BYTES}")
            begin = at + _HEADER.size
            if len(buffer) < begin + length:
                break
            at = begin + length
            frames.append(Frame(call_id, code, bytes(memoryview(buffer)[begin:at])))
        del buffer[:at]
        return frames


class End(asyncio.Protocol):
    """One end of a connection: frames in, frames out."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _set_options(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
        except BodyTooLarge as error:
            log.warning("direct line to %s closed: %s", self.peer, error)
            self.abort()
            return
        for frame in frames:
            self.take(frame)

    def take(self, frame: Frame) -> None:
        """Serve it, or hand it to whoever waits for it."""
        raise NotImplementedError

    def send(self, frame: Frame) -> None:
        """What cannot be sent any more is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        call_id, code, body = frame
        header = _HEADER.pack(len(body), call_id, code)
        if len(body) < _SMALL_BODY:
            self._transport.write(header + body)
        else:
            self._transport.writelines((header, body))

    @property
    def peer(self) -> str:
        return str(self._transport.get_extra_info("peername")) if self._transport is not None else "nobody"

    def abort(self) -> None:
        """Hang up, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()


def _set_options(sock: socket.socket | None) -> None:
    """Frames leave at once, and a peer that vanished is noticed, as far as the system can do that."""
    if sock is None:
        return
    options = {
        (socket.IPPROTO_TCP, "TCP_NODELAY"): 1,
        (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): DEAD_PEER_S // 2,
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): 1,
        (socket.IPPROTO_TCP, "TCP_KEEPCNT"): DEAD_PEER_S // 2,
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"): DEAD_PEER_S * 1000,
    }
    for (level, name), value in options.items():
        with contextlib.suppress(AttributeError, OSError):  # not every system has all of them
            sock.setsockopt(level, getattr(socket, name), value)

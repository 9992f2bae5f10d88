"""What the readers of picture headers share: bounded reading, and the two ways in which they fail."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = [
    "MAX_PIECES",
    "NeedMoreBytes",
    "ProbeError",
    "TooManyPieces",
    "UnknownFormat",
    "pieces",
    "take",
    "unpack",
]

#: Segments, chunks or boxes of a file; a PNG of 64 MiB in pieces of 8 KiB, as libpng writes them, has half.
#: Headers are read on the event loop, where so many take 20 ms; a file made of nothing else took seconds.
MAX_PIECES = 1 << 14


class ProbeError(Exception):
    """The size cannot be told. Not the user's fault by itself: a decoder may still know."""


class NeedMoreBytes(ProbeError):
    """The header goes on beyond the bytes given."""


class UnknownFormat(ProbeError):
    """Not a file of a format that is read here, or a broken one."""


class TooManyPieces(UnknownFormat):
    """A file of so many segments, chunks or boxes that nothing here goes on reading it, no decoder either."""

    def __init__(self) -> None:
        super().__init__(f"a file of more than {MAX_PIECES} pieces")


def take(head: bytes, at: int, length: int) -> bytes:
    """
    Raises:
        NeedMoreBytes: not all of them are there.
    """
    part = head[at : at + length]
    if len(part) < length:
        raise NeedMoreBytes(f"bytes {at} to {at + length} are not there")
    return part


def unpack(layout: str, head: bytes, at: int) -> tuple[int, ...]:
    """Numbers by a `struct` layout.

    Raises:
        NeedMoreBytes: as `take`.
    """
    return struct.unpack(layout, take(head, at, struct.calcsize(layout)))


def pieces() -> Iterator[int]:
    """As many turns as a file may have pieces.

    Raises:
        TooManyPieces: one more was asked for.
    """
    yield from range(MAX_PIECES)
    raise TooManyPieces

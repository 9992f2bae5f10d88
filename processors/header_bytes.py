"""What the readers of picture headers share: bounded reading, and the two ways in which they fail."""

from __future__ import annotations

import struct

__all__ = ["NeedMoreBytes", "ProbeError", "UnknownFormat", "take", "unpack"]


class ProbeError(Exception):
    """The size cannot be told. Not the user's fault by itself: a decoder may still know."""


class NeedMoreBytes(ProbeError):
    """The header goes on beyond the bytes given."""


class UnknownFormat(ProbeError):
    """Not a file of a format that is read here, or a broken one."""


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

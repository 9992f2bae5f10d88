"""Sizes of ICO files, which hold several pictures: the one that Pillow takes (its IcoImagePlugin, 13.0)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import ceil, log2

from processors.header_bytes import TooManyPieces, UnknownFormat, take, unpack
from sightline_types import ImageSize

__all__ = ["ico_size"]

#: Icons have a dozen.
_MAX_PICTURES = 1024
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class _Entry:
    width: int
    height: int
    depth: int
    offset: int


def ico_size(head: bytes) -> ImageSize:
    """The largest picture's own size: the directory may say another."""
    (count,) = unpack("<H", head, 4)
    if count == 0:
        raise UnknownFormat("an ICO without a picture")
    if count > _MAX_PICTURES:
        raise TooManyPieces
    entries = [_entry(take(head, 6 + 16 * i, 16)) for i in range(count)]
    # There sorted by depth, then by size backwards; both sorts keep the order of equals.
    best = min(entries, key=lambda entry: (-entry.width * entry.height, entry.depth))
    if take(head, best.offset, 8) == _PNG:
        return ImageSize(*unpack(">LL", head, best.offset + 16))
    return _bitmap_size(head, best.offset)


def _entry(raw: bytes) -> _Entry:
    width, height, colours, bits, offset = struct.unpack("<BBBxxxHxxxxL", raw)
    depth = bits or (ceil(log2(colours)) if colours else 0) or 256
    return _Entry(width or 256, height or 256, depth, offset)


def _bitmap_size(head: bytes, at: int) -> ImageSize:
    """A bitmap with a mask of the same size below it."""
    (header,) = unpack("<L", head, at)
    if header == 12:
        width, height = unpack("<HH", head, at + 4)
    else:
        width, height = unpack("<Ll", head, at + 4)
    return ImageSize(width, abs(height) // 2)

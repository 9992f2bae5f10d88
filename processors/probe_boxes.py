"""Sizes of AVIF and HEIC files: ISO base media boxes (ISO 14496-12, 23008-12).

The primary item's `ispe` is its size before its own rotation (`irot`). Mirroring (`imir`) keeps the size,
cropping (`clap`) is not applied by the decoder (libavif), and EXIF's orientation counts for nothing here:
Pillow takes the rotation for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from processors.exif import upright
from processors.formats import HEIF_BRANDS
from processors.header_bytes import UnknownFormat, pieces, take, unpack
from sightline_types import ImageSize

__all__ = ["heif_size"]

#: A longer directory is none: that of a picture of 16 thousand tiles fits, more than have a limit's pixels.
_MAX_META_BYTES = 1 << 22
_SIDEWAYS = 6


@dataclass(frozen=True, slots=True)
class _Box:
    kind: bytes
    body: bytes


def heif_size(head: bytes) -> ImageSize:
    brand = take(head, 8, 4)
    if brand not in HEIF_BRANDS:
        raise UnknownFormat(f"an ISO media file of brand {brand!r}, which is no picture")
    boxes = {box.kind: box.body for box in _boxes(_meta(head), 4)}
    for needed in (b"pitm", b"iprp"):
        if needed not in boxes:
            raise UnknownFormat(f"a HEIF file without {needed.decode()}")
    item = _primary(boxes[b"pitm"])
    properties: list[_Box] = []
    turns = pieces()
    width = height = turned = None
    for box in _boxes(boxes[b"iprp"]):
        if box.kind == b"ipco":
            properties = list(_boxes(box.body))
        elif box.kind == b"ipma":
            for index in _links_of(item, box.body, turns):
                kind, body = _property(properties, index)
                if kind == b"ispe":
                    width, height = _unpack(">LL", body, 4)
                elif kind == b"irot":
                    turned = _unpack(">B", body, 0)[0] & 1
    if width is None or height is None:
        raise UnknownFormat("a HEIF file whose picture has no size")
    return upright(width, height, _SIDEWAYS if turned else 1)


def _meta(head: bytes) -> bytes:
    """The body of the top level's `meta` box."""
    at, turns = 0, pieces()
    while True:
        next(turns)
        length, kind = struct.unpack(">L4s", take(head, at, 8))
        start = 8
        if length == 1:
            (length,) = unpack(">Q", head, at + 8)
            start = 16
        if length < start:
            raise UnknownFormat("a HEIF file with a broken box")
        if kind == b"meta":
            if length > _MAX_META_BYTES:
                raise UnknownFormat(f"a HEIF file with a directory of {length} bytes")
            return take(head, at + start, length - start)
        at += length


def _boxes(body: bytes, at: int = 0) -> Iterator[_Box]:
    turns = pieces()
    while at + 8 <= len(body):
        next(turns)
        length, kind = struct.unpack_from(">L4s", body, at)
        if length < 8 or at + length > len(body):
            raise UnknownFormat("a HEIF file with a broken box")
        yield _Box(kind, body[at + 8 : at + length])
        at += length


def _primary(pitm: bytes) -> int:
    version = _unpack(">B", pitm, 0)[0]
    return _unpack(">H" if version == 0 else ">L", pitm, 4)[0]


def _links_of(wanted: int, ipma: bytes, turns: Iterator[int]) -> list[int]:
    """The numbers (from 1) of an item's properties."""
    version, flags = _unpack(">B2xB", ipma, 0)
    (count,) = _unpack(">L", ipma, 4)
    layout, link = (">HB" if version < 1 else ">LB"), ("H" if flags & 1 else "B")
    at, found = 8, list[int]()
    for _ in range(count):
        next(turns)
        item, links = _unpack(layout, ipma, at)
        at += struct.calcsize(layout)
        numbers = _unpack(f">{links}{link}", ipma, at)
        at += links * struct.calcsize(link)
        if item == wanted:
            found += [number & (0x7FFF if link == "H" else 0x7F) for number in numbers]
    return found


def _property(properties: list[_Box], index: int) -> tuple[bytes, bytes]:
    if not 1 <= index <= len(properties):
        return b"", b""
    box = properties[index - 1]
    return box.kind, box.body


def _unpack(layout: str, body: bytes, at: int) -> tuple[int, ...]:
    """Numbers of a box that is all there: what lacks is broken, not still to come."""
    if at + struct.calcsize(layout) > len(body):
        raise UnknownFormat("a HEIF file with a box cut short")
    return struct.unpack_from(layout, body, at)

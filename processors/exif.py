"""EXIF orientation, read as Pillow's `ImageOps.exif_transpose` reads it. Pure, and total on any bytes."""

from __future__ import annotations

import re
import struct

from sightline_types import ImageSize

__all__ = ["ORIENTATION", "Byteorder", "byteorder_of", "orientation", "upright"]

ORIENTATION = 274
#: TIFF types that Pillow gives as one whole number, by struct code.
_INTEGER_TYPES = {3: "H", 4: "L", 8: "h", 9: "l"}
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_PREFIX = re.compile(rb"^(?:Exif\x00\x00){1,2}")

Byteorder = str


def orientation(exif: bytes | None, xmp: bytes | None) -> int:
    """1 to 8 where it is set well, 1 or any other number where it is not: both mean "as it is".

    exif: a TIFF structure, with or without its `Exif\\0\\0`. It wins over XMP.
    """
    value = None
    if exif:
        try:
            value = _tag(_PREFIX.sub(b"", exif))
        except ValueError:
            return 1
    if value is None and xmp and (found := _XMP_ORIENTATION.search(xmp)):
        value = int(found[1])
    return 1 if value is None else value


def upright(width: int, height: int, turn: int) -> ImageSize:
    """Orientations 5 to 8 lie on their side."""
    return ImageSize(height, width) if turn in (5, 6, 7, 8) else ImageSize(width, height)


def byteorder_of(header: bytes) -> Byteorder | None:
    """struct's sign for a classic TIFF header (4 bytes or more); None where it is not one."""
    return {b"II*\x00": "<", b"MM\x00*": ">"}.get(header[:4])


def _tag(tiff: bytes) -> int | None:
    """The orientation in the first directory.

    Raises:
        ValueError: not a TIFF structure; Pillow gives up too and leaves the picture as it is.
    """
    order = byteorder_of(tiff)
    if order is None or len(tiff) < 8:
        raise ValueError("not a TIFF header")
    (at,) = struct.unpack_from(order + "L", tiff, 4)
    if at + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, at)
    for entry in range(at + 2, min(at + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind, values = struct.unpack_from(order + "HHL", tiff, entry)
        if tag == ORIENTATION and kind in _INTEGER_TYPES and values == 1:
            (value,) = struct.unpack_from(order + _INTEGER_TYPES[kind], tiff, entry + 8)
            return int(value)
    return None

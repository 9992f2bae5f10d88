"""EXIF orientation, read as Pillow's `ImageOps.exif_transpose` reads it. Pure, and total on any bytes."""

from __future__ import annotations

import re
import struct

from sightline_types import ImageSize

__all__ = ["ORIENTATION", "Byteorder", "byteorder_of", "first_number", "orientation", "unit_bytes", "upright"]

ORIENTATION = 274
_BYTEORDERS = {b"II*\0": "<", b"II\0*": "<", b"MM\0*": ">", b"MM*\0": ">", b"MM\0+": ">"}
#: TIFF's types: bytes of one value, and the layout of those that are numbers (rational ones are two).
_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_NUMBERS = {
    3: "H", 4: "L", 5: "LL", 6: "b", 8: "h", 9: "l", 10: "ll", 11: "f", 12: "d", 13: "L", 16: "Q",
}  # fmt: skip
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
    """struct's sign for what Pillow takes for a classic TIFF header (4 bytes or more), else None."""
    return _BYTEORDERS.get(header[:4])


def _tag(tiff: bytes) -> int | None:
    """The orientation in the first directory, as Pillow (13.0) reads it: entries of unknown types, empty ones
    and those of a tag that was read before are passed over; one whose data lie beyond the end is the last.

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
    read, known = 0, set[int]()
    for entry in range(at + 2, min(at + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind, values = struct.unpack_from(order + "HHL", tiff, entry)
        num_bytes, start = unit_bytes(kind) * values, entry + 8
        if not num_bytes or tag in known:
            continue
        if num_bytes > 4:
            read += num_bytes
            if read > len(tiff):
                continue
            (start,) = struct.unpack_from(order + "L", tiff, start)
            if start + num_bytes > len(tiff):
                return None
        known.add(tag)
        if tag == ORIENTATION:
            return first_number(order, kind, tiff[start : start + num_bytes]) or 1
    return None


def unit_bytes(kind: int) -> int:
    """Bytes of one value of a TIFF type; 0 for a type that is not known."""
    return _UNITS.get(kind, 0)


def first_number(order: Byteorder, kind: int, data: bytes) -> int | None:
    """The first of a TIFF entry's values, where it is a whole number."""
    layout = _NUMBERS.get(kind)
    if layout is None or len(data) < struct.calcsize("=" + layout):
        return None
    number, *below = struct.unpack_from(order + layout, data)
    if below and not below[0]:
        return None
    value = number / below[0] if below else number
    return int(value) if value == value // 1 else None

"""A picture's size from the first bytes of its file. Pure; raises nothing but what is declared here.

Sizes are those after EXIF transposition, as the engine's loader will see them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

from processors.exif import ORIENTATION, byteorder_of, first_number, orientation, unit_bytes, upright
from processors.formats import named_format
from processors.header_bytes import (
    MAX_PIECES,
    NeedMoreBytes,
    ProbeError,
    TooManyPieces,
    UnknownFormat,
    pieces,
    take,
    unpack,
)
from processors.probe_boxes import heif_size
from processors.probe_chunks import png_size, webp_size
from processors.probe_icons import ico_size
from sightline_types import ImageSize

__all__ = ["NeedMoreBytes", "ProbeError", "TooManyPieces", "UnknownFormat", "probe_image"]


def probe_image(head: bytes) -> ImageSize:
    """The size of a PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF, HEIC or ICO.

    head: the file's first bytes, or all of them. PNG allows orientation after the pixels: it is
        honoured as far as `head` reaches.

    Raises:
        NeedMoreBytes: see there.
        UnknownFormat, TooManyPieces: see there.
    """
    size = _reader(head)(head)
    if size.width < 1 or size.height < 1:
        raise UnknownFormat(f"a picture of {size} has no pixels")
    return size


def _reader(head: bytes) -> Callable[[bytes], ImageSize]:
    if (name := named_format(head)) not in (None, "HEIC"):
        raise UnknownFormat(f"{name}, which is not read here")
    for start, reader in _READERS:
        if head.startswith(start):
            return reader
    if head[4:8] == b"ftyp":
        return heif_size
    if len(head) < _LONGEST_START and any(start.startswith(head) for start, _ in _READERS):
        raise NeedMoreBytes("too few bytes to tell the format")
    raise UnknownFormat("none of PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF, HEIC, ICO")


# JPEG

_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC} | {0xDE}
_WITHOUT_LENGTH = {0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)}
_FILLING = re.compile(rb"\xff*")
_XMP_START = b"http://ns.adobe.com/xap/1.0/\x00"


def _jpeg(head: bytes) -> ImageSize:
    """Every segment up to the scan is read: EXIF may follow the frame header."""
    size, exif, xmp = None, bytearray(), b""
    for marker, at, length in _segments(head):
        if marker in _SOF:
            bits, height, width = unpack(">BHH", head, at)
            if bits != 8:
                raise UnknownFormat(f"a JPEG of {bits} bits")
            size = (width, height)
        elif marker == 0xE1:
            body = take(head, at, length)
            if body.startswith(b"Exif\x00\x00"):
                exif += body[6:]
            elif body.startswith(_XMP_START):
                xmp = body[len(_XMP_START) :]
    if size is None:
        raise UnknownFormat("a JPEG without a frame header")
    return upright(*size, orientation(bytes(exif), xmp))


def _segments(head: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start of the body, its length), up to the start of the scan."""
    at = 2
    for _ in pieces():
        at = head.find(b"\xff", at)
        if at < 0:
            raise NeedMoreBytes("the JPEG's scan has not begun")
        (marker,), at = _after_filling(head, at)
        if marker == 0xDA:
            return
        if marker == 0 or marker in _WITHOUT_LENGTH:
            continue
        if marker < 0xC0:
            raise UnknownFormat(f"a JPEG with marker {marker:#x}")
        (length,) = unpack(">H", head, at)
        yield marker, at + 2, max(length - 2, 0)
        at += max(length, 2)


def _after_filling(head: bytes, at: int) -> tuple[bytes, int]:
    """The marker behind a byte of 0xFF and any more of them, and where it ends."""
    filled = _FILLING.match(head, at)
    assert filled is not None
    if filled.end() - at > MAX_PIECES:
        raise TooManyPieces
    return take(head, filled.end(), 1), filled.end() + 1


# GIF, BMP, TIFF


def _gif(head: bytes) -> ImageSize:
    """The logical screen, made larger where the first frame reaches beyond it, as Pillow does."""
    width, height, flags = unpack("<HHB", head, 6)
    at, turns = 13 + _palette_bytes(flags), pieces()
    while True:
        next(turns)
        (kind,) = take(head, at, 1)
        if kind == 0x2C:
            left, top, frame_width, frame_height = unpack("<HHHH", head, at + 1)
            return ImageSize(max(width, left + frame_width), max(height, top + frame_height))
        if kind == 0x3B:
            raise UnknownFormat("a GIF without a frame")
        at = _after_sub_blocks(head, at + 2, turns) if kind == 0x21 else at + 1


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_sub_blocks(head: bytes, at: int, turns: Iterator[int]) -> int:
    while length := take(head, at, 1)[0]:
        at += 1 + length
        next(turns)
    return at + 1


def _bmp(head: bytes) -> ImageSize:
    (header,) = unpack("<L", head, 14)
    if header == 12:
        return ImageSize(*unpack("<HH", head, 18))
    if header not in (40, 52, 56, 64, 108, 124):
        raise UnknownFormat(f"a BMP with a header of {header} bytes")
    width, height = unpack("<Ll", head, 18)
    return ImageSize(width, abs(height))  # negative: the rows run from top to bottom


def _tiff(head: bytes) -> ImageSize:
    order = byteorder_of(head)
    assert order is not None
    (directory,) = unpack(order + "L", head, 4)
    tags = _tiff_tags(head, order, directory)
    if 256 not in tags or 257 not in tags:
        raise UnknownFormat("a TIFF without width and height")
    turn = tags.get(ORIENTATION)
    if turn is None:
        turn = orientation(None, _tiff_xmp(head, order, directory))
    return upright(tags[256], tags[257], turn)


def _tiff_entries(head: bytes, order: str, directory: int) -> Iterator[tuple[int, int, int, bytes]]:
    (count,) = unpack(order + "H", head, directory)
    for at in range(directory + 2, directory + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack(order + "HHL", take(head, at, 8))
        yield tag, kind, values, take(head, at + 8, 4)


def _tiff_tags(head: bytes, order: str, directory: int) -> dict[int, int]:
    """The first value of width, height and orientation, where they are whole numbers."""
    tags: dict[int, int] = {}
    for tag, kind, values, value in _tiff_entries(head, order, directory):
        if tag in (256, 257, ORIENTATION) and 0 < values * unit_bytes(kind) <= 4:
            number = first_number(order, kind, value)
            if number is not None:
                tags.setdefault(tag, number)
    return tags


def _tiff_xmp(head: bytes, order: str, directory: int) -> bytes | None:
    for tag, kind, values, value in _tiff_entries(head, order, directory):
        if tag == 700 and kind in (1, 7) and values > 4:
            (at,) = struct.unpack(order + "L", value)
            return take(head, at, values)
    return None


_READERS: tuple[tuple[bytes, Callable[[bytes], ImageSize]], ...] = (
    (b"\x89PNG\r\n\x1a\n", png_size),
    (b"\xff\xd8\xff", _jpeg),
    (b"RIFF", webp_size),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"BM", _bmp),
    (b"II*\x00", _tiff),
    (b"MM\x00*", _tiff),
    (b"\x00\x00\x01\x00", ico_size),
)
_LONGEST_START = max(len(start) for start, _ in _READERS)

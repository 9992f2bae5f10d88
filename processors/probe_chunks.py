"""Sizes of PNG and WebP files: formats made of chunks, with metadata that may come late."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from processors.exif import orientation, upright
from processors.header_bytes import UnknownFormat, pieces, take, unpack
from sightline_types import ImageSize

__all__ = ["png_size", "webp_size"]

# PNG

_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")
_RAW_PROFILE, _XMP = b"Raw profile type exif", b"XML:com.adobe.xmp"
_LONGEST_KEYWORD = 80
#: Longest unpacked text that is looked at: no orientation hides in more.
_TEXT_LIMIT = 1 << 20


def png_size(head: bytes) -> ImageSize:
    kind, width, height = struct.unpack(">4sLL", take(head, 12, 12))
    if kind != b"IHDR":
        raise UnknownFormat("a PNG that does not begin with IHDR")
    exif = b""
    texts: dict[bytes, bytes] = {}  # by keyword: still packed, so that thousands of bombs cost one
    for kind, body in _png_chunks(head):
        if kind == b"eXIf":
            exif = body
        elif (keyword := body[:_LONGEST_KEYWORD].partition(b"\x00")[0]) in (_RAW_PROFILE, _XMP):
            texts[keyword] = kind + body
    packed = texts.get(_RAW_PROFILE)
    if not exif and packed is not None:
        exif = _unhex(_png_text(packed[:4], packed[4:]))
    packed = texts.get(_XMP)
    xmp = b"" if packed is None else _png_text(packed[:4], packed[4:])
    return upright(width, height, orientation(exif, xmp))


def _png_chunks(head: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Chunks that may tell an orientation: all before the pixels, and those after that are at hand."""
    at, pixels_seen, kind = 8, False, b""
    for _ in pieces():
        if kind == b"IEND" or (pixels_seen and at + 8 > len(head)):
            return
        length, kind = struct.unpack(">L4s", take(head, at, 8))
        pixels_seen = pixels_seen or kind == b"IDAT"
        if kind == b"eXIf" or kind in _TEXT_CHUNKS:
            if pixels_seen and at + 8 + length > len(head):
                return
            yield kind, take(head, at + 8, length)
        at += 12 + length


def _png_text(kind: bytes, body: bytes) -> bytes:
    """A text chunk's text, unpacked."""
    _, _, text = body.partition(b"\x00")
    if kind == b"tEXt":
        return text
    if kind == b"zTXt":
        return _inflate(text[1:])
    _, _, rest = text[2:].partition(b"\x00")
    _, _, content = rest.partition(b"\x00")
    return _inflate(content) if text[:1] == b"\x01" else content


def _inflate(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, _TEXT_LIMIT)
    except zlib.error:
        return b""


def _unhex(text: bytes) -> bytes:
    """ImageMagick's raw profile: name and length on three lines, then hexadecimal digits."""
    digits = b"".join(text.split(b"\n")[3:])
    if not re.fullmatch(rb"(?:[0-9a-fA-F]{2}|\s)*", digits):
        return b""
    return bytes.fromhex(digits.decode("ascii"))


# WebP

_EXIF_FLAG, _XMP_FLAG = 0x08, 0x04


def webp_size(head: bytes) -> ImageSize:
    if take(head, 8, 4) != b"WEBP":
        raise UnknownFormat("a RIFF file that is not WebP")
    kind = take(head, 12, 4)
    if kind == b"VP8 ":
        if take(head, 23, 3) != b"\x9d\x01\x2a":
            raise UnknownFormat("a WebP without a key frame")
        width, height = unpack("<HH", head, 26)
        return ImageSize(width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        signature, bits = unpack("<BL", head, 20)
        if signature != 0x2F:
            raise UnknownFormat("a lossless WebP without its signature")
        return ImageSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X":
        return _webp_extended(head)
    raise UnknownFormat("a WebP that begins with none of VP8, VP8L, VP8X")


def _webp_extended(head: bytes) -> ImageSize:
    canvas = take(head, 24, 6)
    width = int.from_bytes(canvas[:3], "little") + 1
    height = int.from_bytes(canvas[3:], "little") + 1
    flags = head[20]
    exif = _webp_chunk(head, b"EXIF") if flags & _EXIF_FLAG else None
    xmp = _webp_chunk(head, b"XMP ") if flags & _XMP_FLAG else None
    return upright(width, height, orientation(exif, xmp))


def _webp_chunk(head: bytes, wanted: bytes) -> bytes | None:
    """The first chunk of that kind; metadata stand at the file's end."""
    (length,) = unpack("<L", head, 4)
    at, end, turns = 12, 8 + length, pieces()
    while at + 8 <= end:
        next(turns)
        kind, length = struct.unpack("<4sL", take(head, at, 8))
        if kind == wanted:
            return take(head, at + 8, length)
        at += 8 + length + (length & 1)
    return None

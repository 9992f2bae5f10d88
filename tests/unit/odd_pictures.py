"""Pictures of odd formats and shapes, beside those of `picture_files`: AVIF, HEIC, ICO, and what is none."""

from __future__ import annotations

import struct
from functools import cache

from picture_files import HEIGHT, WIDTH, encoded, exif, jpeg_segment, jpeg_with, picture, png_chunk


def _avifs() -> dict[str, bytes]:
    files = {f"avif-turned-{turn}": encoded(picture(), "AVIF", exif=exif(turn)) for turn in range(1, 9)}
    files["avif"] = encoded(picture(), "AVIF")
    files["avif-alpha"] = encoded(picture("RGBA"), "AVIF")
    frames = [picture().rotate(90 * i) for i in range(1, 3)]
    files["avif-animated"] = encoded(picture(), "AVIF", save_all=True, append_images=frames)
    return files


def _icos() -> dict[str, bytes]:
    square = picture(width=64, height=64)
    return {
        "ico": encoded(square, "ICO", sizes=[(16, 16), (48, 48), (32, 32)]),
        "ico-bitmap": encoded(square, "ICO", sizes=[(16, 16), (48, 48)], bitmap_format="bmp"),
        "ico-256": encoded(picture(width=256, height=256), "ICO", sizes=[(256, 256)]),
        "ico-palette": encoded(square.convert("P"), "ICO", sizes=[(32, 32)], bitmap_format="bmp"),
        "ico-oblong": encoded(picture(width=40, height=20), "ICO", sizes=[(40, 20), (8, 4)]),
    }


def _others() -> dict[str, bytes]:
    long_exif = [jpeg_segment(0xE1, b"Exif\0\0" + bytes(60000))] * 2
    jpeg = encoded(picture(), "JPEG")
    first = jpeg.index(b"\xff\xc0")
    frame = jpeg[first : first + 2 + struct.unpack_from(">H", jpeg, first + 2)[0]]
    animated = encoded(picture(), "PNG", save_all=True, append_images=[picture(width=20, height=9)])
    return {
        "jpeg-behind-120-kilobytes": jpeg_with(*long_exif),
        "jpeg-frame-first": jpeg[:2] + frame + jpeg[2:first] + jpeg[first + len(frame) :],
        "jpeg-arithmetic-tables": jpeg_with(jpeg_segment(0xCC, b"\x00\x00")),
        "png-animated": animated,
        "png-wide": encoded(picture(width=5000, height=1), "PNG"),
        "gif-one-pixel": encoded(picture("P", 1, 1), "GIF"),
    }


@cache
def odd_corpus() -> dict[str, bytes]:
    """Name to file."""
    return _avifs() | _icos() | _others()


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">L4s", len(body) + 8, kind) + body


def heif(
    brand: bytes = b"heic", *, size: tuple[int, int] = (WIDTH, HEIGHT), turn: int | None = None,
    primary: int = 2, wide_ids: bool = False,
) -> bytes:  # fmt: skip
    """The boxes of a HEIF file with two items, a thumbnail first; no pixels.

    turn: quarter turns of `irot`. wide_ids: 32-bit item ids and 15-bit property numbers.
    """
    properties = [
        box(b"ispe", bytes(4), struct.pack(">LL", 16, 9)),
        box(b"ispe", bytes(4), struct.pack(">LL", *size)),
    ]
    links = [2]
    if turn is not None:
        properties.append(box(b"irot", bytes([turn])))
        links.append(3)
    id_layout, link_layout = ("L", "H") if wide_ids else ("H", "B")
    first = struct.pack(f">{id_layout}B{link_layout}", 1, 1, 1)
    second = struct.pack(f">{id_layout}B{len(links)}{link_layout}", primary, len(links), *links)
    ipma_head = struct.pack(">B2xBL", int(wide_ids), int(wide_ids), 2)
    ipma = box(b"ipma", ipma_head, first, second)
    pitm_head = struct.pack(">B3x", int(wide_ids)) + struct.pack(f">{id_layout}", primary)
    meta = box(
        b"meta",
        bytes(4),
        box(b"hdlr", bytes(24)),
        box(b"pitm", pitm_head),
        box(b"iprp", box(b"ipco", *properties), ipma),
    )
    return box(b"ftyp", brand, bytes(4), b"mif1" + brand) + meta + box(b"mdat", bytes(64))


def refused_files() -> dict[str, bytes]:
    """By the format's name."""
    emf = bytearray(box(b"", bytes(100)))
    emf[:4], emf[40:44] = b"\x01\x00\x00\x00", b" EMF"
    return {
        "SVG": b'<?xml version="1.0"?>\n<!-- made by hand -->\n<svg xmlns="http://www.w3.org/2000/svg"/>',
        "HTML": b"\n<!DOCTYPE html><html><body>Not found</body></html>",
        "XML": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
        "PDF": b"%PDF-1.7\n",
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        "WMF": b"\xd7\xcd\xc6\x9a" + bytes(60),
        "EMF": bytes(emf),
        "MP4 or QuickTime video": box(b"ftyp", b"mp42", bytes(4), b"isommp42"),
        "Matroska or WebM video": b"\x1aE\xdf\xa3" + bytes(60),
        "WAVE audio": b"RIFF\x00\x00\x00\x00WAVEfmt ",
        "JPEG XL": b"\xff\x0a" + bytes(60),
        "a ZIP archive": b"PK\x03\x04" + bytes(60),
    }


def huge_png(width: int = 2**31 - 1, height: int = 2**31 - 1) -> bytes:
    """Declares more pixels than any memory holds."""
    data = encoded(picture(), "PNG")
    header = struct.pack(">LL", width, height) + data[24:29]
    return data[:8] + png_chunk(b"IHDR", header) + data[33:]


def huge_ico() -> bytes:
    """A small directory that leads to a PNG of that kind; Pillow decodes an ICO when it opens it."""
    png = huge_png()
    entry = struct.pack("<BBBBHHLL", 32, 32, 0, 0, 1, 32, len(png), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + png

"""Encoded pictures of every kind that the header reader knows, made with Pillow and a few spliced bytes."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

WIDTH, HEIGHT = 37, 23
XMP = b'<x:xmpmeta><rdf:RDF><rdf:Description tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'


def picture(mode: str = "RGB", width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    values = np.random.default_rng(7).integers(0, 256, (height, width, 4), dtype=np.uint8)
    rgba = Image.fromarray(values)
    if mode == "RGBA":
        return rgba
    if mode in ("I;16", "I;16B"):
        return Image.fromarray(values[..., 0].astype(np.uint16) * 200).convert(mode)
    return rgba.convert("RGB").convert(mode) if mode != "LA" else rgba.convert("LA")


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(turn: int) -> bytes:
    tags = Image.Exif()
    tags[274] = turn
    tags[271] = "a camera"
    return tags.tobytes()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))


def png_with(chunk: bytes, *, after_pixels: bool = False) -> bytes:
    data = encoded(picture(), "PNG")
    at = data.index(b"IEND") - 4 if after_pixels else 33
    return data[:at] + chunk + data[at:]


def jpeg_segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpeg_with(*segments: bytes) -> bytes:
    data = encoded(picture(), "JPEG")
    return data[:2] + b"".join(segments) + data[2:]


def _pngs() -> dict[str, bytes]:
    files = {
        f"png-{mode}": encoded(picture(mode), "PNG") for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")
    }
    files |= {f"png-turned-{turn}": encoded(picture(), "PNG", exif=exif(turn)) for turn in range(1, 9)}
    files["png-palette-transparent"] = encoded(picture("P"), "PNG", transparency=3)
    files["png-key-colour"] = encoded(picture(), "PNG", transparency=(255, 0, 0))
    files["png-grey-key"] = encoded(picture("L"), "PNG", transparency=7)
    files["png-turned-after-the-pixels"] = png_with(png_chunk(b"eXIf", exif(6)[6:]), after_pixels=True)
    files["png-xmp"] = png_with(png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP))
    files["png-xmp-zipped"] = png_with(
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0en\0\0" + zlib.compress(XMP))
    )
    profile = b"\nexif\n%8d\n%s\n" % (len(exif(6)), exif(6).hex().encode())
    files["png-raw-profile"] = png_with(
        png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile))
    )
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "nothing of interest")
    files["png-text"] = encoded(picture(), "PNG", pnginfo=info)
    return files


def _jpegs() -> dict[str, bytes]:
    files = {f"jpeg-turned-{turn}": encoded(picture(), "JPEG", exif=exif(turn)) for turn in range(10)}
    files |= {f"jpeg-{mode}": encoded(picture(mode), "JPEG") for mode in ("RGB", "L", "CMYK")}
    files["jpeg-progressive"] = encoded(picture(), "JPEG", progressive=True)
    thumbnail = encoded(picture(width=16, height=9), "JPEG")
    files["jpeg-thumbnail"] = jpeg_with(jpeg_segment(0xE1, exif(8) + thumbnail))
    files["jpeg-xmp"] = jpeg_with(jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP))
    files["jpeg-exif-over-xmp"] = jpeg_with(
        jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP), jpeg_segment(0xE1, exif(3))
    )
    files["jpeg-broken-exif"] = jpeg_with(jpeg_segment(0xE1, b"Exif\0\0garbage!"))
    files["jpeg-filled"] = jpeg_with(b"\xff\xff\xff" + jpeg_segment(0xFE, b"a comment"))
    files["jpeg-two"] = encoded(picture(), "MPO", save_all=True, append_images=[picture(width=50)])
    return files


def _webps() -> dict[str, bytes]:
    files = {f"webp-turned-{turn}": encoded(picture(), "WEBP", exif=exif(turn)) for turn in range(1, 9)}
    files["webp"] = encoded(picture(), "WEBP")
    files["webp-lossless"] = encoded(picture(), "WEBP", lossless=True)
    files["webp-alpha"] = encoded(picture("RGBA"), "WEBP")
    files["webp-xmp"] = encoded(picture(), "WEBP", xmp=XMP)
    frames = [picture("RGBA").rotate(90 * i) for i in range(1, 3)]
    files["webp-animated"] = encoded(picture("RGBA"), "WEBP", save_all=True, append_images=frames)
    return files


def _others() -> dict[str, bytes]:
    frames = [picture("P").rotate(90 * i) for i in range(1, 3)]
    files = {
        "gif": encoded(picture("P"), "GIF"),
        "gif-animated": encoded(picture("P"), "GIF", save_all=True, append_images=frames, comment=b"moving"),
        "gif-transparent": encoded(picture("P"), "GIF", transparency=3),
        "gif-frame-beyond-screen": _small_screen(encoded(picture("P"), "GIF")),
        "bmp": encoded(picture(), "BMP"),
        "bmp-palette": encoded(picture("P"), "BMP"),
        "bmp-from-the-top": _from_the_top(encoded(picture(), "BMP")),
        "bmp-core-header": _core_bmp(),
        "tiff": encoded(picture(), "TIFF"),
        "tiff-big-endian": encoded(picture("I;16B"), "TIFF"),
        "tiff-lzw": encoded(picture(), "TIFF", compression="tiff_lzw"),
        "tiff-rgba": encoded(picture("RGBA"), "TIFF"),
    }
    files |= {f"tiff-turned-{turn}": encoded(picture(), "TIFF", tiffinfo={274: turn}) for turn in range(1, 9)}
    return files


def _small_screen(gif: bytes) -> bytes:
    return gif[:6] + struct.pack("<HH", 5, 4) + gif[10:]


def _from_the_top(bmp: bytes) -> bytes:
    return bmp[:22] + struct.pack("<l", -HEIGHT) + bmp[26:]


def _core_bmp() -> bytes:
    rows = bytes((WIDTH * 3 + 3) // 4 * 4 * HEIGHT)
    header = struct.pack("<LHHHH", 12, WIDTH, HEIGHT, 1, 24)
    return struct.pack("<2sLHHL", b"BM", 26 + len(rows), 0, 0, 26) + header + rows


@cache
def corpus() -> dict[str, bytes]:
    """Name to file."""
    return _pngs() | _jpegs() | _webps() | _others()

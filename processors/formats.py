"""What a file is, by its first bytes. The declared type and the name's ending are never asked."""

from __future__ import annotations

import re

__all__ = ["HEIF_BRANDS", "named_format"]

#: ISO base media brands of pictures. Those of films (`isom`, `mp42`) are none.
AVIF_BRANDS = (b"avif", b"avis")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")
#: Containers of either kind.
HEIF_BRANDS = (*AVIF_BRANDS, *HEIC_BRANDS, b"mif1", b"mif2", b"msf1", b"miaf")

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", "PDF"),
    (b"%!PS", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "PostScript"),
    (b"\xd7\xcd\xc6\x9a", "WMF"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video"),
    (b"OggS", "Ogg"),
    (b"ID3", "MP3 audio"),
    (b"fLaC", "FLAC audio"),
    (b"\x00\x00\x01\xba", "MPEG video"),
    (b"\x00\x00\x01\xb3", "MPEG video"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
)
_RIFF = {b"AVI ": "AVI video", b"WAVE": "WAVE audio"}
_SVG = re.compile(rb"<svg[\s>]", re.IGNORECASE)
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TEXT_SEEN = 4096


def named_format(head: bytes) -> str | None:
    """The name of a format that is known and is no picture that is read here; None where it may be one.

    head: the first bytes, 4096 for the formats that are text.
    """
    for start, name in _STARTS:
        if head.startswith(start):
            return name
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[:4] == b"\x01\x00\x00\x00" and head[40:44] == b" EMF":
        return "EMF"
    if head[4:8] == b"ftyp":
        return _film_or_heic(head)
    return _markup(head[:_TEXT_SEEN])


def _film_or_heic(head: bytes) -> str | None:
    brand = head[8:12]
    if brand in HEIC_BRANDS:
        return "HEIC"
    return None if brand in HEIF_BRANDS else "MP4 or QuickTime video"


def _markup(text: bytes) -> str | None:
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return None
    if _SVG.search(text):
        return "SVG"
    return "HTML" if _HTML.search(text) else "XML"

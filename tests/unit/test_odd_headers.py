"""Headers that mislead: metadata with broken entries, pixels that break off, pieces without end."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_pictures import box
from picture_files import HEIGHT, WIDTH, corpus, jpeg_segment, jpeg_with, png_chunk

from processors import UnsupportedMedia, decode_image, probe_image
from processors.header_bytes import MAX_PIECES, TooManyPieces
from sightline_types import ImageSize

LIMIT = 178_956_970
SIZE, TURNED = ImageSize(WIDTH, HEIGHT), ImageSize(HEIGHT, WIDTH)
ORIENTATION, CAMERA, BITS = 274, 271, 258
ASCII, SHORT, LONG, RATIONAL, UNKNOWN = 2, 3, 4, 5, 99
#: An entry of a directory: tag, type, number of values, the values or where they are.
Entry = tuple[int, int, int, bytes]
TURN = (ORIENTATION, SHORT, 1, b"\0\6\0\0")


def exif_of(entries: Sequence[Entry], start: bytes = b"MM\0*", tail: bytes = bytes(40)) -> bytes:
    directory = b"".join(struct.pack(">HHL", *entry[:3]) + entry[3] for entry in entries)
    return start + struct.pack(">LH", 8, len(entries)) + directory + bytes(4) + tail


def jpeg_of(exif: bytes) -> bytes:
    return jpeg_with(jpeg_segment(0xE1, b"Exif\0\0" + exif))


def decoded_size(data: bytes) -> ImageSize:
    return ImageSize(*decode_image(data, max_pixels=LIMIT).size)


BEYOND = (CAMERA, ASCII, 9, b"\0\0\xff\0")
EXIFS = {
    "plain": (exif_of([TURN]), TURNED),
    "behind an entry whose data lie beyond the end": (exif_of([BEYOND, TURN]), SIZE),
    "before an entry whose data lie beyond the end": (exif_of([TURN, BEYOND]), TURNED),
    "behind an entry that came before, with data beyond the end": (
        exif_of([(CAMERA, ASCII, 1, bytes(4)), BEYOND, TURN]),
        TURNED,
    ),
    "behind an entry larger than the file": (exif_of([(CAMERA, ASCII, 1 << 30, bytes(4)), TURN]), TURNED),
    "behind an entry of an unknown type": (exif_of([(CAMERA, UNKNOWN, 9, b"\0\0\xff\0"), TURN]), TURNED),
    "behind one that cannot be written again": (exif_of([(BITS, ASCII, 9, b"\0\0\0\x22"), TURN]), TURNED),
    "twice": (exif_of([TURN, (ORIENTATION, SHORT, 1, b"\0\1\0\0")]), TURNED),
    "first without a value": (exif_of([(ORIENTATION, SHORT, 0, bytes(4)), TURN]), TURNED),
    "two values": (exif_of([(ORIENTATION, SHORT, 2, b"\0\6\0\1")]), TURNED),
    "a fraction": (
        exif_of([(ORIENTATION, RATIONAL, 1, b"\0\0\0\x1a")], tail=struct.pack(">LL", 12, 2)),
        TURNED,
    ),
    "no whole number": (
        exif_of([(ORIENTATION, RATIONAL, 1, b"\0\0\0\x1a")], tail=struct.pack(">LL", 13, 2)),
        SIZE,
    ),
    "a text": (exif_of([(ORIENTATION, ASCII, 1, b"6\0\0\0")]), SIZE),
    "cut off": (exif_of([TURN])[:20], SIZE),
    "byte order misspelt": (exif_of([TURN], start=b"MM*\0"), TURNED),
    "no TIFF": (exif_of([TURN], start=b"MM\0\0"), SIZE),
}


@pytest.mark.filterwarnings("ignore")  # Pillow's, of metadata that are broken
@pytest.mark.parametrize("name", EXIFS)
def test_an_odd_orientation_counts_alike_in_the_header_and_in_the_pixels(name: str) -> None:
    exif, size = EXIFS[name]
    assert probe_image(jpeg_of(exif)) == decoded_size(jpeg_of(exif)) == size


def entries() -> st.SearchStrategy[list[Entry]]:
    values = st.sampled_from([b"\0\6\0\0", b"\0\0\0\6", b"\6\0\0\0", b"\0\0\0\x30", b"\0\0\xff\xff"])
    tag = st.sampled_from([ORIENTATION, ORIENTATION, CAMERA, BITS, 282])
    return st.lists(st.tuples(tag, st.integers(0, 17), st.integers(0, 12), values), max_size=5)


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, max_examples=300)
@given(entries(), st.binary(max_size=40))
def test_no_directory_is_read_in_two_ways(found: list[Entry], tail: bytes) -> None:
    data = jpeg_of(exif_of(found, tail=tail))
    assert probe_image(data) == decoded_size(data)


@pytest.mark.parametrize("name", ["png-turned-6", "png-RGB"])
def test_a_picture_whose_pixels_break_off_is_refused_whatever_its_orientation(name: str) -> None:
    """Pillow gives what it has on being asked a second time, and vLLM's own loader takes that."""
    data = bytearray(corpus()[name])
    at = data.index(b"IDAT") + 60
    data[at : at + 40] = bytes(40)
    with pytest.raises(UnsupportedMedia) as caught:
        decode_image(bytes(data), max_pixels=LIMIT)
    assert caught.value.status == 400


def test_what_is_turned_once_is_not_turned_again() -> None:
    image = decode_image(corpus()["jpeg-turned-6"], max_pixels=LIMIT)
    assert ORIENTATION not in image.getexif() and image.info == {}


# Pieces without end

N = MAX_PIECES + 1
IHDR = png_chunk(b"IHDR", struct.pack(">LLBBBBB", 9, 9, 8, 2, 0, 0, 0))
PNG = b"\x89PNG\r\n\x1a\n" + IHDR
WEBP = b"WEBPVP8X" + struct.pack("<LB9x", 10, 8) + b"ABCD\0\0\0\0" * N
LINKS = box(b"ipma", struct.pack(">B2xBL", 0, 0, N), struct.pack(">HBB", 2, 1, 1) * N)
ISPE = box(b"ispe", bytes(4), struct.pack(">LL", 5, 5))


def avif(properties: bytes, links: bytes) -> bytes:
    pitm = box(b"pitm", bytes(4), b"\0\2")
    meta = box(b"meta", bytes(4), pitm, box(b"iprp", box(b"ipco", properties), links))
    return box(b"ftyp", b"avif", bytes(4)) + meta


ENDLESS = {
    "jpeg, markers without a body": b"\xff\xd8\xff" + b"\xff\xd0" * N,
    "jpeg, empty segments": b"\xff\xd8" + b"\xff\xe2\0\2" * N,
    "jpeg, filling": b"\xff\xd8\xff" + b"\xff" * N,
    "gif, comments": b"GIF89a" + bytes(7) + b"!\xfe\0" * N,
    "gif, one comment": b"GIF89a" + bytes(7) + b"!\xfe" + b"\1a" * N,
    "png, texts": PNG + png_chunk(b"tEXt", b"") * N,
    "png, behind the pixels": PNG + png_chunk(b"IDAT", b"") + png_chunk(b"tEXt", b"") * N,
    "webp, chunks": b"RIFF" + struct.pack("<L", len(WEBP)) + WEBP,
    "avif, boxes": box(b"ftyp", b"avif", bytes(4)) + box(b"free") * N,
    "avif, properties": avif(box(b"free") * N, b""),
    "avif, links": avif(ISPE, LINKS),
    "ico, pictures": b"\0\0\1\0" + struct.pack("<H", 1025) + bytes(16 * 1025),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_of_endless_pieces_is_given_up(name: str) -> None:
    """It is read where all requests are, and a decoder would take as long."""
    with pytest.raises(TooManyPieces):
        probe_image(ENDLESS[name])
    with pytest.raises(UnsupportedMedia, match=f"more than {MAX_PIECES} pieces") as caught:
        decode_image(ENDLESS[name], max_pixels=LIMIT)
    assert caught.value.status == 400


def test_a_large_png_in_small_chunks_is_read() -> None:
    """64 MiB in pieces of 8 KiB, as libpng writes them."""
    data = PNG + png_chunk(b"IDAT", b"") * 8192 + png_chunk(b"IEND", b"")
    assert probe_image(data) == ImageSize(9, 9)

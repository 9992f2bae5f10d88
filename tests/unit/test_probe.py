"""A picture's size from its first bytes."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_files import (
    HEIGHT,
    WIDTH,
    corpus,
    encoded,
    exif,
    jpeg_segment,
    jpeg_with,
    picture,
    png_chunk,
)
from PIL import Image, ImageOps

from processors import NeedMoreBytes, UnknownFormat, probe_chunks, probe_image
from processors.probe import ProbeError
from sightline_types import ImageSize

STARTS = (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*")


@pytest.mark.parametrize("name", corpus())
def test_the_size_is_what_pillow_gives_after_transposition(name: str) -> None:
    data = corpus()[name]
    upright = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    assert probe_image(data) == ImageSize(*upright.size)


def test_the_corpus_holds_pictures_that_lie_on_their_side() -> None:
    turned = [name for name, data in corpus().items() if probe_image(data) == ImageSize(HEIGHT, WIDTH)]
    assert {name.split("-")[0] for name in turned} == {"png", "jpeg", "webp", "tiff"}
    assert "jpeg-turned-6" in turned and "jpeg-turned-3" not in turned


@pytest.mark.parametrize("name", corpus())
def test_a_file_cut_short_asks_for_more_or_tells_the_size_without_late_orientation(name: str) -> None:
    data = corpus()[name]
    allowed = {ImageSize(WIDTH, HEIGHT), probe_image(data)}
    for end in range(0, len(data), 7):
        try:
            assert probe_image(data[:end]) in allowed
        except NeedMoreBytes:
            continue


def test_a_webp_with_exif_asks_for_the_bytes_at_its_end() -> None:
    data = corpus()["webp-turned-6"]
    with pytest.raises(NeedMoreBytes):
        probe_image(data[: data.rindex(b"EXIF")])
    assert probe_image(data) == ImageSize(HEIGHT, WIDTH)


def test_a_tiff_whose_directory_lies_beyond_asks_for_more() -> None:
    data = corpus()["tiff-turned-6"]
    (directory,) = struct.unpack_from("<L", data, 4)
    with pytest.raises(NeedMoreBytes):
        probe_image(data[: directory + 20])


def test_a_jpeg_whose_frame_header_lies_beyond_long_metadata_asks_for_more() -> None:
    data = jpeg_with(*[jpeg_segment(0xE2, bytes(60000))] * 2)
    with pytest.raises(NeedMoreBytes):
        probe_image(data[:65536])
    assert probe_image(data) == ImageSize(WIDTH, HEIGHT)


def test_exif_after_the_frame_header_counts() -> None:
    data = corpus()["jpeg-RGB"]
    scan = data.index(b"\xff\xda")
    late = data[:scan] + jpeg_segment(0xE1, exif(6)) + data[scan:]
    assert probe_image(late) == ImageSize(HEIGHT, WIDTH)


@pytest.mark.parametrize(
    "data", [b"hello, I am text", b"%PDF-1.7", b"RIFF\0\0\0\0WAVEfmt ", b"BM" + bytes(60)]
)
def test_other_files_are_of_unknown_format(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        probe_image(data)


def test_a_jpeg_of_twelve_bits_is_of_unknown_format() -> None:
    data = bytearray(corpus()["jpeg-RGB"])
    data[data.index(b"\xff\xc0") + 4] = 12
    with pytest.raises(UnknownFormat, match="12 bits"):
        probe_image(bytes(data))


def test_a_picture_without_pixels_is_refused() -> None:
    data = bytearray(encoded(picture(), "PNG"))
    data[16:20] = bytes(4)
    with pytest.raises(UnknownFormat, match="no pixels"):
        probe_image(bytes(data))


@settings(deadline=None, max_examples=300)
@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(start: bytes, rest: bytes) -> None:
    _only_ours(start + rest)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_no_damage_to_a_file_raises_anything_else(data: st.DataObject) -> None:
    damaged = bytearray(corpus()[data.draw(st.sampled_from(sorted(corpus())))][:400])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _only_ours(bytes(damaged))


def _only_ours(data: bytes) -> None:
    try:
        size = probe_image(data)
    except ProbeError:
        return
    assert size.width > 0 and size.height > 0


def test_of_many_packed_texts_in_a_png_one_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    inflate, unpacked = probe_chunks._inflate, list[int]()

    def counting(data: bytes) -> bytes:
        unpacked.append(len(data))
        return inflate(data)

    monkeypatch.setattr(probe_chunks, "_inflate", counting)
    profile = b"Raw profile type exif\0\0" + zlib.compress(b"\n\n\n" + b"0" * 4096)
    head = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">LLBBBBB", 30, 20, 8, 2, 0, 0, 0))
    head += png_chunk(b"zTXt", profile) * 500 + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")
    assert probe_image(head) == ImageSize(30, 20)
    assert len(unpacked) == 1


def test_an_orientation_in_pieces_over_many_segments_is_put_together() -> None:
    exif = b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHLHH", 0x0112, 3, 1, 6, 0) + b"\0\0\0\0"
    pieces = [b"Exif\0\0" + exif[at : at + 1] for at in range(len(exif))]
    segments = [b"\xff\xe1" + struct.pack(">H", len(piece) + 2) + piece for piece in pieces]
    frame = b"\xff\xc0\0\x0b\x08" + struct.pack(">HH", 20, 30) + b"\x01\x11\0\0"
    assert probe_image(b"\xff\xd8" + b"".join(segments) + frame + b"\xff\xda") == ImageSize(20, 30)

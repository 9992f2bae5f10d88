"""Pixels from encoded files."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from picture_files import HEIGHT, WIDTH, corpus, encoded, picture
from PIL import Image

from processors import UnsupportedMedia, decode_image

LIMIT = 178_956_970


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")  # of importing the engine, not ours
@pytest.mark.parametrize("name", corpus())
def test_pixels_equal_those_of_the_engines_loader(name: str) -> None:
    from vllm.multimodal.media.image import ImageMediaIO

    data = corpus()[name]
    ours = decode_image(data, max_pixels=LIMIT)
    theirs = ImageMediaIO().load_bytes(data).media
    assert ours.mode == theirs.mode == "RGB"
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("name", corpus())
def test_every_file_of_the_corpus_becomes_rgb(name: str) -> None:
    assert decode_image(corpus()[name], max_pixels=LIMIT).mode == "RGB"


def test_a_picture_lying_on_its_side_is_set_upright() -> None:
    assert decode_image(corpus()["jpeg-turned-6"], max_pixels=LIMIT).size == (HEIGHT, WIDTH)


def test_transparent_pixels_become_white() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert decode_image(encoded(clear, "PNG"), max_pixels=LIMIT).getpixel((0, 0)) == (255, 255, 255)


def test_a_transparent_palette_entry_becomes_white() -> None:
    image = Image.new("P", (4, 4), 3)
    image.putpalette([9] * 768)
    data = encoded(image, "PNG", transparency=3)
    assert decode_image(data, max_pixels=LIMIT).getpixel((0, 0)) == (255, 255, 255)


def test_an_animation_gives_its_first_frame() -> None:
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    data = encoded(first, "GIF", save_all=True, append_images=[second])
    assert decode_image(data, max_pixels=LIMIT).getpixel((0, 0)) == (255, 0, 0)


def test_a_picture_of_just_the_limit_passes() -> None:
    data = encoded(picture(), "PNG")
    assert decode_image(data, max_pixels=WIDTH * HEIGHT).size == (WIDTH, HEIGHT)


def test_too_many_pixels_are_refused_with_both_numbers() -> None:
    with pytest.raises(
        UnsupportedMedia, match=rf"{WIDTH * HEIGHT} pixels; the limit is {WIDTH * HEIGHT - 1}"
    ) as caught:
        decode_image(encoded(picture(), "PNG"), max_pixels=WIDTH * HEIGHT - 1)
    assert caught.value.status == 400


def test_text_is_an_unsupported_format() -> None:
    with pytest.raises(UnsupportedMedia) as caught:
        decode_image(b"not a picture at all", max_pixels=LIMIT)
    assert caught.value.status == 415


def test_postscript_is_never_interpreted() -> None:
    buffer = BytesIO()
    picture().save(buffer, "EPS")
    with pytest.raises(UnsupportedMedia) as caught:
        decode_image(buffer.getvalue(), max_pixels=LIMIT)
    assert caught.value.status == 415


@pytest.mark.parametrize("name", ["png-RGB", "jpeg-RGB", "gif", "webp", "tiff-lzw"])
def test_a_file_cut_short_is_refused(name: str) -> None:
    data = corpus()[name]
    with pytest.raises(UnsupportedMedia) as caught:
        decode_image(data[: len(data) // 2], max_pixels=LIMIT)
    assert caught.value.status in (400, 415)

"""Pictures with a photograph's weight, as many as wanted: a few are encoded, the others derived from them.

A derived picture has other coefficients in its quantization table, so its bytes and its pixels differ, while
only the first few hundred bytes need be made (and encoded in base64) anew.
"""

from __future__ import annotations

import base64
import bisect
import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["DataUrls", "Picture", "make_pictures"]

#: Coefficients that tell derived pictures apart, each of so many values: 2**40 pictures.
STAMP_DIGITS = 10
STAMP_BASE = 16
_DQT = b"\xff\xdb"
#: Marker, length and table id stand before the 64 values of a table, the coarsest detail first.
_VALUES_AT, _VALUES = 5, 64


@dataclass(frozen=True, slots=True)
class Picture:
    """A JPEG file in two pieces: the head changes with the stamp. len(head) is a multiple of 3."""

    head: bytes
    tail: bytes

    def stamped(self, number: int) -> bytes:
        """The head of picture `number` of this family, 0 <= number < 2**40."""
        head = bytearray(self.head)
        end = head.index(_DQT) + _VALUES_AT + _VALUES
        for place in range(STAMP_DIGITS):
            number, digit = divmod(number, STAMP_BASE)
            head[end - 1 - place] = 20 + digit
        return bytes(head)

    def file(self, number: int) -> bytes:
        return self.stamped(number) + self.tail


def make_pictures(count: int, size: tuple[int, int], file_bytes: int, seed: int) -> list[Picture]:
    """`count` different JPEG files, `size` (width, height) in pixels, each of about `file_bytes` bytes."""
    random = np.random.default_rng(seed)
    noise = random.integers(-24, 24, (size[1], size[0], 3), dtype=np.int16)
    first = _photo(random, noise)
    quality = 20 + bisect.bisect_left(range(20, 96), file_bytes, key=lambda q: len(_jpeg(first, q)))
    return [_split(_jpeg(_photo(random, np.roll(noise, 7 * i, axis=1)), quality)) for i in range(count)]


class DataUrls:
    """data: URLs of these pictures, each in two pieces, the second shared by all that derive from one."""

    def __init__(self, pictures: list[Picture]) -> None:
        self._pictures = pictures
        self._tails = [base64.b64encode(picture.tail) for picture in pictures]

    def url(self, number: int) -> tuple[bytes, bytes]:
        which = number % len(self._pictures)
        head = base64.b64encode(self._pictures[which].stamped(number))
        return b"data:image/jpeg;base64," + head, self._tails[which]


def _photo(random: np.random.Generator, noise: npt.NDArray[np.int16]) -> Image.Image:
    height, width, _ = noise.shape
    coarse = Image.fromarray(random.integers(0, 255, (9, 16, 3), dtype=np.uint8)).resize((width, height))
    return Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8))


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _split(data: bytes) -> Picture:
    cut = data.index(_DQT) + _VALUES_AT + _VALUES
    cut += -cut % 3
    return Picture(data[:cut], data[cut:])

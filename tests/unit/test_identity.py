"""Identities of media."""

from __future__ import annotations

from typing import Any

import blake3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_files import encoded, picture
from PIL import Image

from processors import (
    IdentityKey,
    decode_image,
    identity_of_bytes,
    identity_of_fields,
    identity_of_pixels,
    identity_of_url,
    identity_of_uuid,
)
from processors.identity import identity_with_file, identity_with_options, identity_with_size, time_bucket
from sightline_types import ImageSize, MediaId

TEXT = st.text(max_size=40)
SIZES = st.integers(1, 6)


@settings(deadline=None, max_examples=50)
@given(first=st.tuples(TEXT, st.integers(0, 10**6)), second=st.tuples(TEXT, st.integers(0, 10**6)))
def test_urls_are_one_only_with_equal_text_in_one_bucket(
    first: tuple[str, int], second: tuple[str, int]
) -> None:
    assert (identity_of_url(*first) == identity_of_url(*second)) == (first == second)


@settings(deadline=None, max_examples=50)
@given(first=st.binary(max_size=64), second=st.binary(max_size=64))
def test_files_are_one_only_with_equal_bytes(first: bytes, second: bytes) -> None:
    assert (identity_of_bytes(first) == identity_of_bytes(second)) == (first == second)


@settings(deadline=None, max_examples=50)
@given(width=SIZES, height=SIZES)
def test_equal_bytes_in_another_shape_are_another_picture(width: int, height: int) -> None:
    tall = identity_of_pixels(np.zeros((height, width, 3), np.uint8))
    wide = identity_of_pixels(np.zeros((width, height, 3), np.uint8))
    assert (tall == wide) == (width == height)


def test_a_changed_pixel_is_another_picture() -> None:
    values = np.zeros((4, 4, 3), np.uint8)
    changed = values.copy()
    changed[3, 3, 2] = 1
    assert identity_of_pixels(values) != identity_of_pixels(changed)


def test_a_view_with_strides_is_the_picture_it_shows() -> None:
    values = np.arange(96, dtype=np.uint8).reshape(4, 8, 3)
    assert identity_of_pixels(values[:, ::2]) == identity_of_pixels(values[:, ::2].copy())


def test_ways_of_naming_never_meet() -> None:
    url = identity_of_url("a", 0)
    pixels = np.frombuffer(b"abc", np.uint8).reshape(1, 1, 3)
    assert len({url, identity_of_bytes(b"a"), identity_of_bytes(b"abc"), identity_of_pixels(pixels)}) == 4


def test_fields_do_not_run_into_each_other() -> None:
    assert identity_of_url("http://host/1", 23) != identity_of_url("http://host/12", 3)


@settings(deadline=None, max_examples=50)
@given(secret=TEXT, data=st.binary(max_size=16), algorithm=st.sampled_from(["xxh3", "blake3"]))
def test_a_secret_changes_every_identity(secret: str, data: bytes, algorithm: Any) -> None:
    key = IdentityKey(secret, algorithm)
    assert identity_of_bytes(data, key) != identity_of_bytes(data)
    assert identity_of_bytes(data, key) == identity_of_bytes(data, IdentityKey(secret, algorithm))
    assert identity_of_bytes(data, key) != identity_of_bytes(data, IdentityKey(secret + "x", algorithm))


def test_the_hash_is_blake3s_keyed_mode() -> None:
    """Its key is derived from the secret, and the fields have their lengths before them."""
    key = blake3.blake3(b"secret", derive_key_context="sightline 2026-11-29 media identities").digest()
    fields = (b"sightline-media-1", b"bytes", b"abc")
    text = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    expected = int.from_bytes(blake3.blake3(text, key=key).digest(length=8), "big")
    assert identity_of_bytes(b"abc", IdentityKey("secret", "blake3")) == MediaId(expected)


@settings(deadline=None, max_examples=100)
@given(first=st.lists(st.binary(max_size=4), max_size=4), second=st.lists(st.binary(max_size=4), max_size=4))
def test_fields_are_one_only_piece_by_piece(first: list[bytes], second: list[bytes]) -> None:
    """Trailing bytes of one field are never the beginning of the next (smg#2371)."""
    assert (identity_of_fields(b"d", first) == identity_of_fields(b"d", second)) == (first == second)


def test_one_address_with_files_of_two_sizes_has_two_identities() -> None:
    address = identity_of_url("https://host/a.png", 7)
    sizes = [ImageSize(4, 3), ImageSize(3, 4), ImageSize(43, 1)]
    assert len({address, *(identity_with_size(address, size) for size in sizes)}) == 4


def test_a_uuid_belongs_to_its_tenant() -> None:
    names = [("a", None), ("a", ""), ("a", "x"), ("ax", ""), ("", "ax"), ("", None)]
    assert len({identity_of_uuid(uuid, tenant) for uuid, tenant in names}) == len(names)
    assert identity_of_uuid("a", "x") == identity_of_uuid("a", "x")


def test_options_that_change_pixels_change_the_identity_and_no_others_do() -> None:
    plain = MediaId(7)
    changed = identity_with_options(plain, {"max_pixels": 1000})
    assert changed not in (plain, identity_with_options(plain, {"max_pixels": 1001}))
    assert identity_with_options(plain, {}) == plain
    assert identity_with_options(plain, {"fps": 2.0, "num_frames": 8}) == plain
    assert identity_with_options(plain, {"max_pixels": 1000, "fps": 2.0}) == changed
    two = {"min_pixels": 1, "max_pixels": 2}
    assert identity_with_options(plain, two) == identity_with_options(plain, dict(reversed(two.items())))


def test_a_name_bound_to_a_file_is_neither() -> None:
    name, file = MediaId(1), MediaId(2)
    ids = {name, file, identity_with_file(name, file), identity_with_file(file, name)}
    assert len(ids) == 4


def test_the_palette_is_part_of_the_picture() -> None:
    """Equal indices under another palette are another picture (vLLM#24969); equal colours are one."""
    indices = Image.new("P", (2, 2), 1)
    indices.putpalette([0, 0, 0, 255, 0, 0])
    other = indices.copy()
    other.putpalette([0, 0, 0, 0, 255, 0])
    red = Image.new("RGB", (2, 2), (255, 0, 0))
    ids = [
        identity_of_pixels(np.asarray(decode_image(encoded(one, "PNG"), max_pixels=100)))
        for one in (indices, other, red)
    ]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP"])
def test_one_picture_in_any_lossless_file_is_one_picture(kind: str) -> None:
    image = picture().quantize(16)
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    data = encoded(image.convert("RGB") if kind == "WEBP" else image, kind, **options)
    pixels = np.asarray(decode_image(data, max_pixels=10**6))
    assert identity_of_pixels(pixels) == identity_of_pixels(np.asarray(image.convert("RGB")))


def test_ten_thousand_pictures_have_ten_thousand_identities() -> None:
    """Near pictures too: each differs from the first in one value (vLLM#20261, SGLang#2151)."""
    base = np.zeros((100, 34, 3), np.uint8)
    flat = base.reshape(-1)
    ids = set()
    for at in range(10_000):
        flat[at] = 1
        ids.add(identity_of_pixels(base))
        flat[at] = 0
    assert len(ids) == 10_000


def test_a_bucket_lasts_for_its_time_to_live() -> None:
    assert time_bucket(7199.9, 3600) == time_bucket(3600.0, 3600) == 1
    assert time_bucket(7200.0, 3600) == 2


def test_identities_stay_the_same_from_release_to_release() -> None:
    """Pinned with this module's first version: a change here forgets every cached picture on an upgrade."""
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    address = identity_of_url("https://example.com/cat.png", 480000)
    found = [
        identity_with_size(address, ImageSize(640, 480)),
        identity_of_bytes(b"sightline", IdentityKey("secret")),
        identity_of_bytes(b"sightline", IdentityKey("secret", "blake3")),
        identity_of_pixels(pixels),
        identity_of_uuid("mine", "tenant"),
    ]
    assert [str(one) for one in found] == [
        "41229094ec1e79b7",
        "3f8cea35dd68850f",
        "364c7e4badc38847",
        "d4ae2137ad23f006",
        "1ed84bae16cf77ca",
    ]

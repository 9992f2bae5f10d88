"""Identities of media."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from processors import identity_of_bytes, identity_of_pixels, identity_of_url
from processors.identity import time_bucket

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
@given(secret=TEXT, data=st.binary(max_size=16))
def test_a_secret_changes_every_identity(secret: str, data: bytes) -> None:
    assert identity_of_bytes(data, secret) != identity_of_bytes(data)
    assert identity_of_bytes(data, secret) == identity_of_bytes(data, secret)
    assert identity_of_bytes(data, secret) != identity_of_bytes(data, secret + "x")


def test_a_bucket_lasts_for_its_time_to_live() -> None:
    assert time_bucket(7199.9, 3600) == time_bucket(3600.0, 3600) == 1
    assert time_bucket(7200.0, 3600) == 2


def test_identities_stay_the_same_from_release_to_release() -> None:
    """Pinned with this module's first version: a change here forgets every cached picture on an upgrade."""
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    found = [
        identity_of_url("https://example.com/cat.png", 480000),
        identity_of_bytes(b"sightline", "secret"),
        identity_of_pixels(pixels),
    ]
    assert [str(one) for one in found] == ["24f0459609ae5243", "3f8cea35dd68850f", "7dd9cc7f1c37aada"]

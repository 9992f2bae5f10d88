"""Media bytes laid end to end and taken apart again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from deployments.protocol import EngineMedia
from deployments.transport import INLINE_LIMIT_BYTES, pack, part, ship
from deployments.uuids import UuidLedger
from sightline_types import ImageSize, MediaId, MediaItem, MediaSource, Modality


def item(number: int, source: MediaSource) -> MediaItem:
    return MediaItem(Modality.IMAGE, MediaId(number), source)


def test_files_and_pixels_come_out_as_they_went_in() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    items = [
        item(1, MediaSource(url="http://x")),
        item(2, MediaSource(pixels=pixels)),
        item(3, MediaSource(data=b"zz")),
    ]
    media, payload = pack(items, [b"file one", None, b"zz"])
    assert [m.form for m in media] == ["file", "pixels", "file"]
    assert bytes(part(payload, media[0])) == b"file one"
    assert np.array_equal(np.frombuffer(part(payload, media[1]), np.uint8).reshape(media[1].shape), pixels)
    assert bytes(part(payload, media[2])) == b"zz"


def test_an_array_from_the_object_store_is_read_like_bytes() -> None:
    media, payload = pack(
        [item(1, MediaSource(data=b"abc")), item(2, MediaSource(data=b"defg"))], [b"abc", b"defg"]
    )
    stored = np.frombuffer(payload, dtype=np.uint8)
    assert bytes(part(stored, media[1])) == b"defg"


def test_small_payloads_travel_by_value() -> None:
    assert ship(b"x" * INLINE_LIMIT_BYTES) == b"x" * INLINE_LIMIT_BYTES
    assert ship(b"") is None


def test_an_item_without_bytes_is_a_bug_that_speaks() -> None:
    with pytest.raises(ValueError, match="neither pixels, frames nor bytes"):
        pack([item(1, MediaSource(url="http://x"))], [None])


def test_a_held_item_has_a_place_and_no_bytes() -> None:
    held = MediaItem(
        Modality.IMAGE, MediaId(1), MediaSource(), ImageSize(4, 3), identity_mode="uuid", is_held=True
    )
    media, payload = pack([held, item(2, MediaSource(data=b"abc"))], [None, b"abc"])
    assert [(m.form, m.offset, m.length) for m in media] == [("held", 0, 0), ("file", 0, 3)]
    assert (media[0].is_named, media[0].size) == (True, ImageSize(4, 3))
    assert payload == b"abc"


def test_a_ledger_knows_a_uuid_that_comes_with_another_picture() -> None:
    ledger = UuidLedger()
    first = EngineMedia(Modality.IMAGE, MediaId(1), "file", 0, 3, size=ImageSize(4, 3), is_named=True)
    assert ledger.note((first,), b"abc")
    assert ledger.note((first,), b"abc")
    assert not ledger.note((first,), b"abd")
    assert ledger.conflicts == 1
    held = dataclasses.replace(first, form="held", length=0)
    assert ledger.note((held,), None)
    assert not ledger.note((dataclasses.replace(held, size=ImageSize(5, 3)),), None)
    assert not ledger.note((dataclasses.replace(held, media_id=MediaId(2)),), None)
    unnamed = dataclasses.replace(first, is_named=False, media_id=MediaId(3))
    assert ledger.note((unnamed,), b"abc") and ledger.note((unnamed,), b"xyz")

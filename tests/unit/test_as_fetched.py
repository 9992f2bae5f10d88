"""A file that is not what its address promised."""

from __future__ import annotations

import pytest
from picture_files import encoded, picture

from processors import as_fetched
from sightline_types import ImageSize, MediaId, MediaItem, MediaSource, Modality

FORESEEN = encoded(picture(width=40, height=30), "PNG")
PROMISED = ImageSize(40, 30)
OTHER = encoded(picture(width=90, height=60), "PNG")


def item(size: ImageSize | None = PROMISED, mode: str = "url") -> MediaItem:
    return MediaItem(Modality.IMAGE, MediaId(7), MediaSource(url="http://a/b"), size, identity_mode=mode)


def test_a_file_of_the_foreseen_size_keeps_its_identity() -> None:
    assert as_fetched(item(), FORESEEN) == item()


def test_a_file_of_another_size_gets_an_identity_of_its_own() -> None:
    first, second = as_fetched(item(), OTHER), as_fetched(item(), OTHER)
    assert first.size == ImageSize(90, 60)
    assert len({first.media_id, second.media_id, MediaId(7)}) == 3


def test_a_file_whose_size_cannot_be_told_any_more_does_too() -> None:
    assert as_fetched(item(), b"no picture").media_id != MediaId(7)


@pytest.mark.parametrize("given", [item(size=None), item(mode="bytes"), item(mode="content")])
def test_nothing_was_promised_where_the_size_was_not_foreseen_by_address(given: MediaItem) -> None:
    assert as_fetched(given, OTHER) is given

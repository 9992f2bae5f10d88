"""From what a request names to a `MediaItem`: its identity, its size, and where its pixels come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from processors.config import IdentityMode, MediaConfig
from processors.decode import check_pixels, decode_image
from processors.errors import RequestError
from processors.fetch import Fetcher
from processors.identity import identity_of_bytes, identity_of_pixels, identity_of_url, time_bucket
from processors.messages import MediaPart
from processors.probe import ProbeError, probe_image
from sightline_types import ImageSize, MediaId, MediaItem, MediaSource, Modality

__all__ = ["ItemMaker", "OffLoop", "as_fetched"]

#: Runs a function where it does not block the event loop.
OffLoop = Callable[..., Awaitable[Any]]


class ItemMaker:
    """clock: seconds since the epoch."""

    def __init__(
        self, media: MediaConfig, fetcher: Fetcher, off_loop: OffLoop, clock: Callable[[], float]
    ) -> None:
        self._media = media
        self._fetcher = fetcher
        self._off_loop = off_loop
        self._clock = clock

    async def make(self, part: MediaPart) -> MediaItem:
        """
        Raises:
            RequestError: with the part's path as `param`.
        """
        try:
            item = await self._make(part.url, self._media.mode_for(part.url))
            if item.size is not None:
                check_pixels(item.size.width, item.size.height, self._media.max_pixels)
            return item
        except RequestError as error:
            error.param = error.param or part.param
            raise

    async def _make(self, url: str, mode: IdentityMode) -> MediaItem:
        if mode == "url":
            return await self._of_url(url)
        if url[:5].lower() == "data:":
            data = await self._off_loop(self._fetcher.parse_data_url, url)
        else:
            data = await self._fetcher.fetch(url)
        make = self._of_pixels if mode == "content" else self._of_bytes
        item: MediaItem = await self._off_loop(make, data)
        return item

    async def _of_url(self, url: str) -> MediaItem:
        bucket = time_bucket(self._clock(), self._media.url_identity_ttl_s)
        media_id = identity_of_url(url, bucket, self._media.identity_secret)
        size = await self._fetcher.probe_size(url)
        return MediaItem(Modality.IMAGE, media_id, MediaSource(url=url), size, identity_mode="url")

    def _of_bytes(self, data: bytes) -> MediaItem:
        media_id = identity_of_bytes(data, self._media.identity_secret)
        size = self._size_of(data)
        return MediaItem(Modality.IMAGE, media_id, MediaSource(data=data), size, identity_mode="bytes")

    def _size_of(self, data: bytes) -> ImageSize:
        """From the header; a format that has no reader here is decoded."""
        try:
            return probe_image(data)
        except ProbeError:
            image = decode_image(data, max_pixels=self._media.max_pixels)
            return ImageSize(image.width, image.height)

    def _of_pixels(self, data: bytes) -> MediaItem:
        image = decode_image(data, max_pixels=self._media.max_pixels)
        pixels = np.array(image, dtype=np.uint8, order="C")
        media_id = identity_of_pixels(pixels, self._media.identity_secret)
        size = ImageSize(image.width, image.height)
        return MediaItem(Modality.IMAGE, media_id, MediaSource(pixels=pixels), size, identity_mode="content")


def as_fetched(item: MediaItem, data: bytes | None) -> MediaItem:
    """The item as its file turned out to be: where that has another size than was foreseen, with an
    identity of its own, so that no cache takes it for the picture that the URL named before.
    """
    if item.identity_mode != "url" or item.size is None or data is None:
        return item
    try:
        size = probe_image(data)
    except ProbeError:
        return replace(item, media_id=MediaId.random(), size=None)
    return item if size == item.size else replace(item, media_id=MediaId.random(), size=size)

"""From what a request names to a `MediaItem`: its identity, its size, and where its pixels come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from processors.aliases import AliasTable, KnownFile
from processors.config import IdentityMode, MediaConfig
from processors.data_url import data_url_head
from processors.decode import check_pixels, decode_image
from processors.errors import RequestError
from processors.fetch import Fetcher
from processors.identity import (
    identity_of_bytes,
    identity_of_pixels,
    identity_of_url,
    identity_of_uuid,
    identity_with_file,
    identity_with_options,
    identity_with_size,
    time_bucket,
)
from processors.messages import MediaPart
from processors.probe import ProbeError, probe_image
from processors.url_names import normalized_url
from sightline_types import DegradeReason, ImageSize, MediaId, MediaItem, MediaSource, Modality

__all__ = ["ItemMaker", "OffLoop", "RequestScope"]

#: Runs a function where it does not block the event loop.
OffLoop = Callable[..., Awaitable[Any]]

#: As much of a data: URL as is decoded for a size, at first.
_HEAD_BYTES = 65536
#: A data: URL that is read on the event loop: 0.3 ms at most.
_SHORT_URL = 1 << 20
_ADDRESS_MODES = ("url", "normalized_url")


@dataclass(frozen=True, slots=True)
class RequestScope:
    """What one request says of all its items.

    tenant: whose uuids they are. options: the request's processor options (`mm_processor_kwargs`).
    size_wait_ms: how long to wait for sizes behind URLs; None: `media.probe_budget_ms`.
    """

    tenant: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    size_wait_ms: float | None = None


class ItemMaker:
    """clock: seconds since the epoch."""

    def __init__(
        self, media: MediaConfig, fetcher: Fetcher, off_loop: OffLoop, clock: Callable[[], float]
    ) -> None:
        self._media = media
        self._key = media.identity_key
        self._fetcher = fetcher
        self._off_loop = off_loop
        self._clock = clock
        self._aliases = AliasTable(media.alias_entries, media.url_identity_ttl_s, clock)

    async def make(self, part: MediaPart, scope: RequestScope | None = None) -> MediaItem:
        """
        Raises:
            RequestError: with the part's path as `param`.
        """
        scope = scope or RequestScope()
        try:
            if part.uuid is None:
                item = await self._make(part.url, self._media.mode_for(part.url), scope)
            else:
                item = await self._of_uuid(part.uuid, part.url, scope)
            self._check_pixels(item.size)
        except RequestError as error:
            error.param = error.param or part.param
            raise
        return replace(item, media_id=identity_with_options(item.media_id, scope.options, self._key))

    async def as_fetched(self, item: MediaItem, data: bytes, scope: RequestScope | None = None) -> MediaItem:
        """The item as its file turned out to be. Whatever was foreseen, two files of different length in
        the prompt never get one identity, and in modes `bytes` and `content` no two files do.

        Raises:
            RequestError: too many pixels, or (mode `content`) a file that is no picture.
        """
        settled = await self._settled(item, data)
        if settled is item:
            return item
        self._check_pixels(settled.size)
        options = (scope or RequestScope()).options
        return replace(settled, media_id=identity_with_options(settled.media_id, options, self._key))

    def _check_pixels(self, size: ImageSize | None) -> None:
        if size is not None:
            check_pixels(size.width, size.height, self._media.max_pixels)

    async def _make(self, url: str, mode: IdentityMode, scope: RequestScope) -> MediaItem:
        if mode in _ADDRESS_MODES:
            return await self._of_address(url, mode, scope)
        if (known := self._known_file(url, mode)) is not None:
            is_trusted = self._media.url_aliases == "trust"
            return MediaItem(
                Modality.IMAGE, known.media_id, MediaSource(url=url), known.size,
                identity_mode=mode, anchor=known.file, is_held=is_trusted,
            )  # fmt: skip
        if url[:5].lower() == "data:":
            return await self._of_data_url(url, mode)
        data = await self._fetcher.fetch(url)
        return await self._of_file(url, data, mode)

    async def _of_data_url(self, url: str, mode: IdentityMode) -> MediaItem:
        """Read, hashed and measured on one thread: each change of threads costs as much as the hash, and
        all three are done here before a change of threads is where the URL is short."""
        if mode == "bytes" and len(url) <= _SHORT_URL:
            data = self._fetcher.parse_data_url(url)
            try:
                size = probe_image(data)
            except ProbeError:
                size = await self._off_loop(self._size_of, data)
            return self._of_measured(data, size)
        item: MediaItem = await self._off_loop(self._of_whole_data_url, url, mode)
        return item

    def _of_whole_data_url(self, url: str, mode: IdentityMode) -> MediaItem:
        data = self._fetcher.parse_data_url(url)
        return self._of_pixels(data) if mode == "content" else self._of_bytes(data)

    async def _of_address(self, url: str, mode: IdentityMode, scope: RequestScope) -> MediaItem:
        size = await self._fetcher.probe_size(url, scope.size_wait_ms)
        named = self._name_of(url) if mode == "normalized_url" else url
        address = identity_of_url(named, self._bucket(), self._key, domain=mode.encode())
        media_id = address if size is None else identity_with_size(address, size, self._key)
        return MediaItem(
            Modality.IMAGE, media_id, MediaSource(url=url), size, identity_mode=mode, anchor=address
        )

    async def _of_file(self, url: str, data: bytes, mode: IdentityMode) -> MediaItem:
        make = self._of_pixels if mode == "content" else self._of_bytes
        item: MediaItem = await self._off_loop(make, data)
        if self._has_alias(url):
            file = item.media_id if mode == "bytes" else identity_of_bytes(data, self._key)
            self._aliases.learn(self._alias_key(url, mode), KnownFile(item.media_id, file, item.size))
        return item

    def _of_bytes(self, data: bytes) -> MediaItem:
        return self._of_measured(data, self._size_of(data))

    def _of_measured(self, data: bytes, size: ImageSize) -> MediaItem:
        media_id = identity_of_bytes(data, self._key)
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
        media_id = identity_of_pixels(pixels, self._key)
        size = ImageSize(image.width, image.height)
        return MediaItem(Modality.IMAGE, media_id, MediaSource(pixels=pixels), size, identity_mode="content")

    # Client uuids

    async def _of_uuid(self, uuid: str, url: str, scope: RequestScope) -> MediaItem:
        """The uuid alone is the identity (as in vLLM), unless `media.bind_uuids`."""
        name = identity_of_uuid(uuid, scope.tenant, self._key)
        known = self._aliases.find(("uuid", str(name)))
        if not url:
            media_id = name if known is None else known.media_id
            size = None if known is None else known.size
            if self._media.bind_uuids and known is None:
                raise RequestError(
                    f"no picture came here yet with the uuid {uuid[:80]!r}; send it with the picture once "
                    "(media.bind_uuids)",
                    status=404,
                    code="unknown_uuid",
                )
            return _item_of_uuid(media_id, MediaSource(), size, is_held=True)
        if self._media.bind_uuids:
            return await self._of_bound_uuid(name, url)
        size = known.size if known is not None else await self._size_behind(url, scope)
        if size is not None:
            self._aliases.learn(("uuid", str(name)), KnownFile(name, None, size))
        item = _item_of_uuid(name, MediaSource(url=url), size, is_held=known is not None)
        return replace(item, anchor=name)

    async def _of_bound_uuid(self, name: MediaId, url: str) -> MediaItem:
        data = await self._fetcher.fetch(url)
        item: MediaItem = await self._off_loop(self._of_bytes, data)
        media_id = identity_with_file(name, item.media_id, self._key)
        self._aliases.learn(("uuid", str(name)), KnownFile(media_id, item.media_id, item.size))
        return replace(item, media_id=media_id, identity_mode="uuid")

    async def _size_behind(self, url: str, scope: RequestScope) -> ImageSize | None:
        """A size for an item whose identity needs no file: only as much is read as tells it."""
        scheme = url[:5].lower()
        if scheme not in ("data:", "file:"):
            return await self._fetcher.probe_size(url, scope.size_wait_ms)
        if scheme == "data:":
            try:
                return probe_image(data_url_head(url, _HEAD_BYTES))
            except ProbeError:
                pass  # its header goes on: the whole of it, then
        data = await self._fetcher.fetch(url)
        size: ImageSize = await self._off_loop(self._size_of, data)
        return size

    # What the file says

    async def _settled(self, item: MediaItem, data: bytes) -> MediaItem:
        if item.anchor is None or item.source.url is None:
            return item
        if item.identity_mode in _ADDRESS_MODES:
            return self._settled_address(item, item.source.url, data)
        if item.identity_mode == "uuid":
            return self._settled_uuid(item, data)
        if item.anchor == identity_of_bytes(data, self._key):
            return item
        mode: IdentityMode = "content" if item.identity_mode == "content" else "bytes"
        now = await self._of_file(item.source.url, data, mode)
        return replace(now, num_tokens=item.num_tokens if now.size == item.size else None)

    def _settled_address(self, item: MediaItem, url: str, data: bytes) -> MediaItem:
        assert item.anchor is not None
        try:
            size = probe_image(data)
        except ProbeError:
            self._fetcher.forget_size(url)
            file = identity_of_bytes(data, self._key)
            return replace(item, media_id=identity_with_file(item.anchor, file, self._key), size=None)
        self._fetcher.note_size(url, size)
        if size == item.size:
            return item
        return replace(item, media_id=identity_with_size(item.anchor, size, self._key), size=size)

    def _settled_uuid(self, item: MediaItem, data: bytes) -> MediaItem:
        """The uuid stays the identity; what it was found to be is remembered for those who send it alone."""
        try:
            size = probe_image(data)
        except ProbeError:
            return item
        assert item.anchor is not None
        self._aliases.learn(("uuid", str(item.anchor)), KnownFile(item.anchor, None, size))
        return item if size == item.size else replace(item, media_id=item.anchor, size=size)

    # Addresses seen before

    def _bucket(self) -> int:
        return time_bucket(self._clock(), self._media.url_identity_ttl_s)

    def _name_of(self, url: str) -> str:
        return normalized_url(url, self._media.url_ignored_parameters)

    def _has_alias(self, url: str) -> bool:
        return self._media.url_aliases != "off" and url[:4].lower() == "http"

    def _alias_key(self, url: str, mode: str) -> tuple[str, str]:
        return mode, self._name_of(url)

    def _known_file(self, url: str, mode: IdentityMode) -> KnownFile | None:
        return self._aliases.find(self._alias_key(url, mode)) if self._has_alias(url) else None


def _item_of_uuid(
    media_id: MediaId, source: MediaSource, size: ImageSize | None, *, is_held: bool
) -> MediaItem:
    reason = DegradeReason.CLIENT_UUID_WITHOUT_SIZE if size is None else None
    return MediaItem(
        Modality.IMAGE, media_id, source, size,
        identity_mode="uuid", is_held=is_held, unknown_because=reason,
    )  # fmt: skip

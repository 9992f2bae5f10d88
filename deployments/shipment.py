"""A request's media made ready to travel: read where they are not here yet, and laid end to end once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from deployments.openai_api import ChatRequest
from deployments.protocol import EngineMedia
from deployments.transport import pack, ship
from processors import Fetcher, MediaTooLarge, PromptBuilder, RequestError, media_param
from sightline_types import MediaItem, PreparedPrompt

__all__ = ["MediaShipper", "Shipment"]


@dataclass(frozen=True, slots=True)
class Shipment:
    """See `EngineRequest` and `deployments.transport`.

    prompt: laid out for the files as they are.
    is_as_foreseen: whether it holds for what is sent.
    can_be_completed: some item travels without its bytes and could have them.
    """

    media: tuple[EngineMedia, ...]
    payload: Any
    is_as_foreseen: bool
    prompt: PreparedPrompt
    can_be_completed: bool = False

    @property
    def lacks_bytes(self) -> bool:
        return any(item.form == "held" for item in self.media)


class MediaShipper:
    """One per ingress replica."""

    def __init__(self, prompts: PromptBuilder, fetcher: Fetcher, max_request_bytes: int) -> None:
        self._prompts = prompts
        self._fetcher = fetcher
        self._max_request_bytes = max_request_bytes

    async def prepare(
        self, prompt: PreparedPrompt, request: ChatRequest, *, is_complete: bool = False
    ) -> Shipment:
        """
        is_complete: with the bytes of all items that have any, even of those that an engine may hold.

        Raises:
            RequestError: an item that cannot be read, with its path as `param`.
            MediaTooLarge: 413.
        """
        if not prompt.media:
            return Shipment((), None, True, prompt)
        pairs = await self._read_all(prompt.media, request, is_complete)
        items = [item for item, _ in pairs]
        self._check_bytes(sum(_num_bytes(item, data) for item, data in pairs))
        media, packed = pack(items, [data for _, data in pairs])
        settled = self._prompts.settled(prompt, items)
        is_as_foreseen = _are_as_foreseen(items, settled.media)
        has_rest = not is_complete and _has_rest(items)
        return Shipment(media, ship(packed), is_as_foreseen, settled, has_rest)

    async def _read_all(
        self, media: tuple[MediaItem, ...], request: ChatRequest, is_complete: bool
    ) -> list[tuple[MediaItem, bytes | None]]:
        if len(media) == 1:
            return [await self._read(media[0], 0, request, is_complete)]
        reads = [
            asyncio.create_task(self._read(item, index, request, is_complete))
            for index, item in enumerate(media)
        ]
        try:
            return list(await asyncio.gather(*reads))
        finally:
            # A read that nobody waits for any more (another item failed, the client left) ends here.
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    def _check_bytes(self, num_bytes: int) -> None:
        limit = self._max_request_bytes
        if num_bytes > limit:
            message = f"the request's media have {num_bytes} bytes; the limit is {limit}"
            raise MediaTooLarge(f"{message} (media.max_request_bytes)", param="messages")

    async def _read(
        self, item: MediaItem, index: int, request: ChatRequest, is_complete: bool
    ) -> tuple[MediaItem, bytes | None]:
        """The item as its file turned out to be, and the file; None where it carries its pixels or frames,
        or travels without."""
        source = item.source
        if source.data is not None or source.url is None or (item.is_held and not is_complete):
            return item, source.data
        try:
            data = await self._fetcher.fetch(source.url)
            return await self._prompts.as_fetched(item, data, request.mm_processor_kwargs), data
        except RequestError as error:
            error.param = error.param or media_param(request.messages, index)
            raise


def _num_bytes(item: MediaItem, data: bytes | None) -> int:
    pixels = item.source.pixels if item.source.frames is None else item.source.frames
    return pixels.nbytes if pixels is not None else len(data or b"")


def _are_as_foreseen(now: list[MediaItem], then: tuple[MediaItem, ...]) -> bool:
    """Of an item whose size was not known nothing was foreseen."""
    return all(
        (one.media_id, one.size) == (other.media_id, other.size)
        for one, other in zip(now, then, strict=True)
        if other.num_tokens is not None
    )


def _has_rest(items: list[MediaItem]) -> bool:
    return any(item.is_held and item.source.url is not None for item in items)

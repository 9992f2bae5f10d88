"""From a chat request to a `PreparedPrompt`."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from processors.assembly import assemble
from processors.config import MediaConfig
from processors.errors import RequestError
from processors.families import layout_for
from processors.fetch import Fetcher
from processors.items import ItemMaker, RequestScope
from processors.layout import FamilyLayout, LayoutOptions
from processors.messages import MediaPart, parse_messages
from processors.model_files import ModelFiles
from processors.placeholders import TextPlaceholders, media_texts
from processors.processor_kwargs import check_processor_kwargs, edges_are_areas
from processors.special_tokens import texts_of
from processors.template import ChatTemplate, TokenizedChat
from processors.token_cache import TokenCacheStats
from processors.video_config import VideoConfig
from processors.video_items import VideoItemMaker
from processors.video_pool import VideoDecoders
from sightline_types import DegradeReason, MediaItem, Modality, PreparedPrompt, TokenIds

__all__ = ["PromptBuilder"]

_T = TypeVar("_T")

#: Of all that a template writes, where it is rendered and tokenized where it came in: 0.5 ms at most, which
#: is what a change of threads costs when other requests are under way.
SHORT_CHARS = 2048


class PromptBuilder:
    """Makes chat requests ready for one model.

    executor: where blocking work runs; None is the event loop's own. clock: seconds since the epoch.
    token_cache_bytes: for the token ids of parts of prompts that come again.
    """

    def __init__(
        self,
        files: ModelFiles,
        media: MediaConfig,
        *,
        enable_multimodal: bool,
        fetcher: Fetcher,
        clock: Callable[[], float] = time.time,
        executor: Executor | None = None,
        token_cache_bytes: int = 64 << 20,
        layout_options: LayoutOptions | None = None,
        video: VideoConfig | None = None,
    ) -> None:
        self._files = files
        self._media = media
        self._enable_multimodal = enable_multimodal
        self._fetcher = fetcher
        self._executor = executor
        self._layout = layout_for(files, _with_length(layout_options or LayoutOptions(), files))
        self._edges_are_areas = edges_are_areas(self._layout, files.preprocessor)
        self._unplaced_videos = _unplaced_videos(files, self._layout)
        self._placeholder_ids = _placeholder_ids(files, self._layout) | self._unplaced_videos
        media_tokens = [*files.media_token_ids, *self._placeholder_ids]
        self._template = ChatTemplate(
            files.tokenizer,
            media_tokens,
            media_texts=media_texts(self._layout, files.tokenizer),
            cache_bytes=token_cache_bytes,
        )
        self._text_placeholders = TextPlaceholders(self._layout.placeholder_texts if self._layout else {})
        self._items = ItemMaker(media, fetcher, self._off_loop, clock)
        video = video or VideoConfig()
        self._decoders = VideoDecoders(video) if video.decode == "ingress" and enable_multimodal else None
        self._videos = VideoItemMaker(video, media, fetcher, self._off_loop, clock, self._decoders)

    async def prepare(
        self,
        messages: object,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        size_wait_ms: float | None = None,
    ) -> PreparedPrompt:
        """Render, tokenize, name and measure the media, and foresee the engine's expanded prompt.

        tenant: whose client uuids the request's are. size_wait_ms: how long to wait for sizes behind
        URLs; None is `media.probe_budget_ms`, 0 takes only what is known already.

        Raises:
            RequestError: whatever is wrong with the request or its media.
        """
        check_processor_kwargs(mm_processor_kwargs or {}, edges_are_areas=self._edges_are_areas)
        max_items = self._media.max_items
        conversation = parse_messages(
            messages, enable_multimodal=self._enable_multimodal, max_items=max_items
        )
        self._text_placeholders.check(conversation)
        is_short = _is_short([conversation.messages, tools, chat_template_kwargs])
        run = _here if is_short else self._off_loop
        chat = await run(
            self._template.tokenize,
            conversation,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
        )
        self._check_placeholders(chat.array, conversation.media)
        scope = RequestScope(tenant, mm_processor_kwargs or {}, size_wait_ms)
        items = await _all(self._make(part, scope) for part in conversation.media)
        return assemble(
            chat,
            items,
            self._layout,
            placeholder_ids=self._placeholder_ids,
            has_processor_kwargs=bool(mm_processor_kwargs),
        )

    @property
    def token_cache_stats(self) -> TokenCacheStats:
        return self._template.cache_stats

    async def as_fetched(
        self, item: MediaItem, data: bytes, mm_processor_kwargs: Mapping[str, Any] | None = None
    ) -> MediaItem:
        """An item of a prompt made here, as its file turned out to be; see `ItemMaker.as_fetched`.

        Raises:
            RequestError: the file has too many pixels or is no picture.
        """
        if item.modality is Modality.VIDEO:
            return await self._videos.as_fetched(item, data)
        return await self._items.as_fetched(item, data, RequestScope(options=mm_processor_kwargs or {}))

    def settled(self, prompt: PreparedPrompt, items: Sequence[MediaItem]) -> PreparedPrompt:
        """A prompt made here, laid out anew where its files turned out not to be what was foreseen.

        items: the prompt's, in order, as `as_fetched` gave them.
        """
        now, then = [[(one.media_id, one.shape) for one in media] for media in (items, prompt.media)]
        if now == then:
            return prompt
        return assemble(
            TokenizedChat(_packed(prompt.token_ids), prompt.first_turn_ids),
            items,
            self._layout,
            placeholder_ids=self._placeholder_ids,
            has_processor_kwargs=DegradeReason.MM_PROCESSOR_KWARGS in prompt.reasons,
        )

    async def aclose(self) -> None:
        """Closes the fetcher and the video decoders, too."""
        await self._fetcher.aclose()
        if self._decoders is not None:
            await self._decoders.aclose()

    async def _make(self, part: MediaPart, scope: RequestScope) -> MediaItem:
        if part.modality is Modality.VIDEO:
            return await self._videos.make(part)
        return await self._items.make(part, scope)

    def _check_placeholders(self, token_ids: npt.NDArray[np.int64], media: Sequence[MediaPart]) -> None:
        """A client's text holds no placeholder (`ChatTemplate`), but a template may write more or fewer
        than there are items, and a tokenizer without special tokens cannot tell them from text.

        Raises:
            RequestError: 400, naming the token.
        """
        if media and self._layout is None:
            return  # a family that is not known may write other placeholders
        for token in dict.fromkeys([*self._files.media_token_ids, *self._placeholder_ids]):
            modalities = self._modalities_of(token)
            expected = sum(part.modality in modalities for part in media)
            found = int(np.count_nonzero(token_ids == token))
            if found != expected:
                name = self._files.tokenizer.convert_ids_to_tokens(token)
                message = f"the prompt holds {found} x {name} for {expected} media items"
                advice = f"do not write {name} in text"
                if found < expected:
                    advice = "the model's chat template does not place them; give it one that does"
                message += f"; {advice}"
                raise RequestError(message, param="messages", code="placeholder_mismatch")

    def _modalities_of(self, token: int) -> frozenset[Modality]:
        """The modalities whose items this token stands for."""
        own = self._layout.placeholders if self._layout else {}
        found = {modality for modality, placeholder in own.items() if placeholder == token}
        if token in self._unplaced_videos:
            found.add(Modality.VIDEO)
        return frozenset(found)

    async def _off_loop(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(function, *args, **kwargs))


def _packed(token_ids: Sequence[int]) -> TokenIds:
    return token_ids if isinstance(token_ids, TokenIds) else TokenIds(np.array(token_ids))


def _is_short(value: object) -> bool:
    """Whether the texts of a JSON value have `SHORT_CHARS` characters at most; reads no further than that."""
    left = SHORT_CHARS
    for text in texts_of(value):
        left -= len(text)
        if left < 0:
            return False
    return True


async def _here(function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    return function(*args, **kwargs)


def _with_length(options: LayoutOptions, files: ModelFiles) -> LayoutOptions:
    """An engine that is told no `max_model_len` takes the model's own."""
    if options.max_model_len is not None:
        return options
    return dataclasses.replace(options, max_model_len=files.max_model_len)


def _placeholder_ids(files: ModelFiles, layout: FamilyLayout | None) -> frozenset[int]:
    """The tokens that stand for media items; empty where they are not known."""
    if layout is not None:
        return frozenset(layout.placeholders.values())
    return frozenset(files.media_token_ids)


def _unplaced_videos(files: ModelFiles, layout: FamilyLayout | None) -> frozenset[int]:
    """The model's own tokens for videos, where its layout knows pictures only."""
    if layout is None or Modality.VIDEO in {*layout.placeholders, *layout.placeholder_texts}:
        return frozenset()
    return frozenset(files.video_token_ids) - frozenset(layout.placeholders.values())


async def _all(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results, in order; the first failure ends the others."""
    waiting = list(work)
    if len(waiting) < 2:
        return [await one for one in waiting]
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""A request's media as an engine is given them: decoded, in prompt order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from PIL import Image

from deployments.config import EngineConfig
from deployments.protocol import EngineMedia
from deployments.transport import Payload, part
from processors import DecodedVideo, RequestError, Sampling, VideoDecoders, decode_image, loader_rule
from processors.model_files import read_preprocessors
from sightline_types import ImageSize, MediaId, Modality

__all__ = ["DecodedMedia", "MediaDecoder", "OddPictures", "are_as_promised"]

#: None: the engine is believed to hold the item.
DecodedMedia = Image.Image | DecodedVideo | None
_ODD_KEPT = 65_536


class MediaDecoder:
    """One per engine replica; to be closed. Videos are decoded in processes of their own."""

    def __init__(self, config: EngineConfig, sampling: Sampling) -> None:
        self._config = config
        self.sampling = sampling
        self._videos = VideoDecoders(config.video)

    @classmethod
    async def for_model(cls, config: EngineConfig) -> MediaDecoder:
        """With the rule by which the engine's own loader would sample the model's videos."""
        video_preprocessor: dict[str, object] = {}
        if config.enable_multimodal:
            _, video_preprocessor = await asyncio.to_thread(read_preprocessors, config.model)
        rule = loader_rule(config.engine, video_preprocessor)
        return cls(config, Sampling(rule, config.video.num_frames))

    async def decode(self, media: Sequence[EngineMedia], payload: Payload) -> list[DecodedMedia]:
        """
        Raises:
            RequestError: an item that cannot be decoded here either, with what is wrong with it.
        """
        items = [asyncio.create_task(self._item(item, payload)) for item in media]
        try:
            return list(await asyncio.gather(*items))
        finally:
            for item in items:
                item.cancel()
            await asyncio.gather(*items, return_exceptions=True)

    async def _item(self, item: EngineMedia, payload: Payload) -> DecodedMedia:
        if item.form == "held":
            return None
        if item.modality is Modality.VIDEO and item.form == "file":
            if self._config.video.decode == "off":
                raise RequestError("videos are not served here (video.decode is off)", code="video_disabled")
            return await self._videos.decode(bytes(part(payload, item)), self.sampling)
        return await asyncio.to_thread(self._plain, item, payload)

    def _plain(self, item: EngineMedia, payload: Payload) -> DecodedMedia:
        data = part(payload, item)
        if item.form == "file":
            return decode_image(bytes(data), max_pixels=self._config.media.max_pixels)
        assert item.shape is not None
        values = np.frombuffer(data, dtype=np.uint8).reshape(item.shape)
        if item.form == "pixels":
            return Image.fromarray(values)
        assert item.video is not None
        # torch does not take memory that cannot be written.
        return DecodedVideo(values.copy(), item.video)

    async def aclose(self) -> None:
        await self._videos.aclose()


class OddPictures:
    """Those that came as something else than was promised of them: as long as an engine may hold one, what
    comes by its identity alone is that. Bounded; one per engine replica."""

    def __init__(self) -> None:
        self._known: OrderedDict[MediaId, None] = OrderedDict()

    def are_among(self, media: Sequence[EngineMedia], decoded: Sequence[object]) -> bool:
        """Whether one of a request's pictures is odd, by what came now or by what came before.

        decoded: as a `MediaSource` gives them.
        """
        if not are_as_promised(media, decoded):
            for item in media:
                self._known[item.media_id] = None
            while len(self._known) > _ODD_KEPT:
                self._known.popitem(last=False)
            return True
        return bool(self._known) and any(item.media_id in self._known for item in media)


def are_as_promised(media: Sequence[EngineMedia], decoded: Sequence[object]) -> bool:
    """Whether every picture has the size that the prompt was laid out for. A file can say one thing in its
    header and hold another; that is no fault of the layout, for which nobody else may pay.

    decoded: as a `MediaSource` gives them.
    """
    pairs = zip(media, map(_picture_size, decoded), strict=True)
    return all(found is None or item.size is None or found == item.size for item, found in pairs)


def _picture_size(decoded: object) -> ImageSize | None:
    if isinstance(decoded, Image.Image):
        return ImageSize(*decoded.size)
    return decoded if isinstance(decoded, ImageSize) else None

"""A request's media as a simulated engine needs them: their shapes, told by the files themselves."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.media import DecodedMedia, MediaDecoder
from deployments.protocol import EngineMedia
from deployments.transport import Payload, part
from processors import DecodedVideo, ProbeError, Shape, probe_image
from sightline_types import ImageSize, Modality

__all__ = ["MediaShapes"]


class MediaShapes:
    """Stands where a real engine's `MediaDecoder` does; to be closed.

    decodes: decode every picture as a real engine's replica must, to pay what that costs. Otherwise a
        picture's size is read from its header; clips whose frames are not told are decoded anyhow.
    """

    def __init__(self, decoder: MediaDecoder, *, decodes: bool) -> None:
        self._decoder = decoder
        self._decodes = decodes

    async def decode(self, media: Sequence[EngineMedia], payload: Payload) -> list[Shape | None]:
        """One per item, in order; None for an item that comes without its file.

        Raises:
            RequestError: an item that cannot be decoded, with what is wrong with it.
        """
        if self._decodes:
            return [_shape(item) for item in await self._decoder.decode(media, payload)]
        return [await self._told_or_decoded(item, payload) for item in media]

    async def _told_or_decoded(self, item: EngineMedia, payload: Payload) -> Shape | None:
        if item.form == "held":
            return None
        if item.form == "frames":
            return item.video
        if item.form == "pixels":
            assert item.shape is not None
            return ImageSize(item.shape[1], item.shape[0])
        if item.modality is Modality.IMAGE:
            try:
                return probe_image(bytes(part(payload, item)))
            except ProbeError:
                pass  # the decoder reads more formats, and says what is wrong with a broken file
        (decoded,) = await self._decoder.decode([item], payload)
        return _shape(decoded)

    async def aclose(self) -> None:
        await self._decoder.aclose()


def _shape(decoded: DecodedMedia) -> Shape | None:
    if decoded is None:
        return None
    if isinstance(decoded, DecodedVideo):
        return decoded.shape
    return ImageSize(*decoded.size)

"""From a video that a request names to a `MediaItem`: decoded here, or left to the replica by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from processors.config import MediaConfig
from processors.errors import RequestError
from processors.fetch import Fetcher
from processors.identity import time_bucket
from processors.items import OffLoop
from processors.messages import MediaPart
from processors.url_names import normalized_url
from processors.video_config import VideoConfig
from processors.video_decode import DecodedVideo, VideoUndecodable
from processors.video_identity import identity_of_clip, identity_of_video_file, identity_of_video_url
from processors.video_pool import DecoderFailed, VideoDecoders
from processors.video_sampling import Sampling
from sightline_types import DegradeReason, MediaItem, MediaSource, Modality

__all__ = ["VideoItemMaker"]


class VideoItemMaker:
    """clock: seconds since the epoch. decoders: needed where `video.decode` is `ingress`."""

    def __init__(
        self,
        video: VideoConfig,
        media: MediaConfig,
        fetcher: Fetcher,
        off_loop: OffLoop,
        clock: Callable[[], float],
        decoders: VideoDecoders | None,
    ) -> None:
        self._video = video
        self._media = media
        self._fetcher = fetcher
        self._off_loop = off_loop
        self._clock = clock
        self._decoders = decoders

    async def make(self, part: MediaPart) -> MediaItem:
        """
        Raises:
            RequestError: with the part's path as `param`.
        """
        try:
            if self._video.decode == "off":
                message = "videos are not served here (video.decode is off); send pictures"
                raise RequestError(message, code="video_disabled")
            if self._video.decode == "ingress" and self._decoders is not None:
                return await self._decoded(part.url, self._decoders)
            return await self._left_to_the_replica(part.url)
        except RequestError as error:
            error.param = error.param or part.param
            raise

    async def _decoded(self, url: str, decoders: VideoDecoders) -> MediaItem:
        data = await self._fetcher.fetch(url)
        try:
            clip = await decoders.decode(data, Sampling("uniform", self._video.num_frames))
        except (VideoUndecodable, DecoderFailed):
            # The replica tries once more, with decoders of its own; its answer is what the client gets.
            return await self._of_file(data, DegradeReason.VIDEO_NOT_DECODED)
        item: MediaItem = await self._off_loop(self._of_clip, clip)
        return item

    async def _left_to_the_replica(self, url: str) -> MediaItem:
        reason = DegradeReason.VIDEO_DECODED_BY_ENGINE
        mode = self._media.mode_for(url)
        if mode not in ("url", "normalized_url"):
            return await self._of_file(await self._fetcher.fetch(url), reason)
        named = normalized_url(url, self._media.url_ignored_parameters) if mode == "normalized_url" else url
        bucket = time_bucket(self._clock(), self._media.url_identity_ttl_s)
        media_id = identity_of_video_url(named, bucket, self._media.identity_key)
        return MediaItem(
            Modality.VIDEO, media_id, MediaSource(url=url), identity_mode=mode, unknown_because=reason
        )

    async def as_fetched(self, item: MediaItem, data: bytes) -> MediaItem:
        """The item with its file's own identity for the engine: nothing was foreseen of it, and no cache
        then keeps what the address gave before."""
        media_id = await self._off_loop(identity_of_video_file, data, self._media.identity_key)
        return replace(item, media_id=media_id)

    async def _of_file(self, data: bytes, reason: DegradeReason) -> MediaItem:
        media_id = await self._off_loop(identity_of_video_file, data, self._media.identity_key)
        return MediaItem(
            Modality.VIDEO, media_id, MediaSource(data=data), identity_mode="bytes", unknown_because=reason
        )

    def _of_clip(self, clip: DecodedVideo) -> MediaItem:
        media_id = identity_of_clip(clip, self._media.identity_key)
        source = MediaSource(frames=clip.frames)
        return MediaItem(
            Modality.VIDEO, media_id, source, clip.shape.size, identity_mode="content", video=clip.shape
        )

"""The items of `sightline layout`: a size, a file, or a URL, each as a shape or a refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from processors import (
    Fetcher,
    MediaConfig,
    ProbeError,
    Refusal,
    RequestError,
    Sampling,
    Shape,
    VideoConfig,
    decode_video,
    identity_of_bytes,
    identity_of_clip,
    probe_image,
)
from sightline_types import DegradeReason, ImageSize, MediaId, VideoShape

__all__ = ["Item", "ItemError", "read_items"]

_IMAGE = re.compile(r"image:(\d+)x(\d+)", re.ASCII)
_VIDEO = re.compile(r"video:(\d+)x(\d+):(\d+)(?:@(\d+(?:\.\d*)?))?(?::indices=(\d+(?:,\d+)*))?", re.ASCII)
#: More than any processor samples; the layout of a longer clip would not fit into memory.
MAX_FRAMES = 10_000
_URL = re.compile(r"(https?|data|file):", re.IGNORECASE)


class ItemError(ValueError):
    """Not an item: neither a size, nor a URL, nor a file that is there."""


@dataclass(frozen=True, slots=True)
class Item:
    """text: as given. shape: or why it has none. media_id: of a picture's bytes or a clip's frames."""

    text: str
    shape: Shape | Refusal
    media_id: MediaId | None = None


def read_items(texts: Sequence[str], *, allow_private_addresses: bool = False) -> list[Item]:
    """
    Raises:
        ItemError: for the first text that is not an item.
    """
    # Whoever calls this may read their own files.
    media = MediaConfig(allow_private_addresses=allow_private_addresses, file_roots=("/",))
    return asyncio.run(_read_all(texts, media))


async def _read_all(texts: Sequence[str], media: MediaConfig) -> list[Item]:
    sized = [_sized(text) for text in texts]
    fetcher = Fetcher(media)
    try:
        return [item or await _of_bytes(text, fetcher) for text, item in zip(texts, sized, strict=True)]
    finally:
        await fetcher.aclose()


def _sized(text: str) -> Item | None:
    """What needs no bytes; None for a file or a URL."""
    if picture := _IMAGE.fullmatch(text):
        return Item(text, _size(text, picture.group(1), picture.group(2)))
    if clip := _VIDEO.fullmatch(text):
        width, height, frames, fps, indices = clip.groups()
        return Item(text, _clip(text, _size(text, width, height), int(frames), fps, indices))
    if text.startswith(("image:", "video:")):
        raise ItemError(
            f"{text!r} is neither image:WIDTHxHEIGHT nor video:WIDTHxHEIGHT:FRAMES[@FPS][:indices=I,...]"
        )
    if _URL.match(text) or Path(text).is_file():
        return None
    raise ItemError(f"{text!r} is neither a size (image:640x480, video:640x360:32@30), nor a URL, nor a file")


def _size(text: str, width: str, height: str) -> ImageSize:
    if int(width) < 1 or int(height) < 1:
        raise ItemError(f"{text!r} has a side of 0 pixels")
    return ImageSize(int(width), int(height))


def _clip(text: str, size: ImageSize, frames: int, fps: str | None, indices: str | None) -> VideoShape:
    """Without indices, the frames are the file's first."""
    if frames > MAX_FRAMES:
        raise ItemError(f"{text!r} has {frames} frames; at most {MAX_FRAMES} are laid out")
    chosen = tuple(map(int, indices.split(","))) if indices else tuple(range(frames))
    if len(chosen) != frames:
        raise ItemError(f"{text!r} names {len(chosen)} indices for {frames} frames")
    return VideoShape(size, frames, float(fps) if fps else None, chosen, max(chosen, default=-1) + 1)


async def _of_bytes(text: str, fetcher: Fetcher) -> Item:
    try:
        if text[:5].lower() == "data:":
            data = fetcher.parse_data_url(text)
        elif _URL.match(text):
            data = await fetcher.fetch(text)
        else:
            data = Path(text).read_bytes()
    except RequestError as error:
        return Item(text, Refusal(DegradeReason.SIZE_UNKNOWN, str(error)))
    try:
        return Item(text, probe_image(data), identity_of_bytes(data))
    except ProbeError as not_a_picture:
        return _of_video(text, data, not_a_picture)


def _of_video(text: str, data: bytes, not_a_picture: ProbeError) -> Item:
    """A clip as the ingress would sample and name it with the default settings."""
    video = VideoConfig()
    try:
        clip = decode_video(data, Sampling("uniform", video.num_frames), video.limits)
    except RequestError as error:
        detail = f"neither a picture of a known format ({not_a_picture}) nor a video ({error})"
        return Item(text, Refusal(DegradeReason.SIZE_UNKNOWN, detail))
    return Item(text, clip.shape, identity_of_clip(clip))

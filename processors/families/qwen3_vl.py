"""Qwen3-VL, Qwen3.5 and Qwen3.6, dense and MoE.

A picture is a run of its placeholder. A clip is, for every two frames, the text of their time, a start
token, a run of the placeholder and an end token; the template's own start and end stay around it all.
The arithmetic is transformers' Qwen3VLVideoProcessor from 5.15 on (`round_ties_even`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from processors.families.evs import retained_tokens
from processors.families.qwen import FRAMES_PER_GROUP, QwenLayout, check_rows, clip_settings
from processors.families.smart_resize import MAX_ASPECT_RATIO, PatchGrid
from processors.families.source import Encode, Source
from processors.layout import (
    LayoutRefused,
    Replacement,
    Shape,
    embed_runs,
    run_of,
)
from sightline_types import DegradeReason, ImageSize, Modality, VideoShape

__all__ = ["Qwen3VLLayout", "Qwen3Video", "layout", "resized_frames"]

# Qwen3.6 ships under the model types of Qwen3.5.
_ARCHITECTURES = {
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
}
# Limits of the video processor's class where its settings are silent.
_VIDEO_SIZE = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}


@dataclass(frozen=True)
class Qwen3Video:
    """Clips. `grid`'s limits are of the whole volume, frames x height x width.

    pruning_rate: of vLLM's `evs` method; all that is kept then stands in the first group, and the encoder
        fills the text between the groups, too.
    """

    start_id: int
    video_id: int
    end_id: int
    grid: PatchGrid
    encode: Encode = field(repr=False, compare=False)
    pruning_rate: float = 0.0

    def replacement(self, clip: VideoShape) -> Replacement:
        check_rows(clip)
        height, width = resized_frames(clip, self.grid)
        times = group_times(clip)
        per_group = (height // self.grid.factor) * (width // self.grid.factor)
        counts = [per_group] * len(times)
        if self.pruning_rate:
            kept = retained_tokens(per_group, len(times), self.pruning_rate)
            counts = [kept] + [0] * (len(times) - 1)
        ids: list[int] = []
        for time, count in zip(times, counts, strict=True):
            ids += self.encode(f"<{time:.1f} seconds>")
            ids += [self.start_id, *([self.video_id] * count), self.end_id]
        array = np.array(ids, dtype=np.int64)
        return Replacement(array, () if self.pruning_rate else embed_runs(array, self.video_id))


@dataclass(frozen=True)
class Qwen3VLLayout(QwenLayout):
    """video: None where clips are not laid out exactly."""

    family: str
    image_id: int
    image: PatchGrid
    video_id: int | None = None
    video: Qwen3Video | None = None

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        if modality is Modality.IMAGE or self.video is None:
            return {"id": self.image_id, **self.image.parameters}
        video = self.video
        tokens = f"{video.start_id}/{video.video_id}/{video.end_id}"
        return {"id": tokens, **video.grid.parameters, "pruning": video.pruning_rate}

    def replacement(self, shape: Shape) -> Replacement:
        if not isinstance(shape, VideoShape):
            return run_of(self.image_id, self.image.num_tokens(shape))
        assert self.video is not None, "asked for what `modalities` lacks"
        return self.video.replacement(shape)


def resized_frames(clip: VideoShape, grid: PatchGrid) -> tuple[int, int]:
    """(height, width) of every frame after the video processor's resize.

    Raises:
        LayoutRefused: fewer than two frames, or a side more than 200 times the other.
    """
    frames, factor = clip.num_frames, grid.factor
    if frames < FRAMES_PER_GROUP:
        detail = f"{frames} frames; the processor takes at least {FRAMES_PER_GROUP}"
        raise LayoutRefused(DegradeReason.VIDEO_REFUSED, detail)
    height, width = _at_least(clip.size, factor)
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        detail = f"aspect ratio {ratio:.1f} of {width}x{height} is above {MAX_ASPECT_RATIO}"
        raise LayoutRefused(DegradeReason.VIDEO_REFUSED, detail)
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    volume = round(frames / FRAMES_PER_GROUP) * FRAMES_PER_GROUP * tall * wide
    if volume > grid.max_pixels:
        shrink = math.sqrt((frames * height * width) / grid.max_pixels)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif volume < grid.min_pixels:
        grow = math.sqrt(grid.min_pixels / (frames * height * width))
        tall = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    return tall, wide


def _at_least(size: ImageSize, factor: int) -> tuple[int, int]:
    height, width = size.height, size.width
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        return int(height * scale), int(width * scale)
    return height, width


def group_times(clip: VideoShape) -> list[float]:
    """Seconds of each group: the mean of its first and last frame's, an odd clip's last frame repeated.

    Raises:
        LayoutRefused: the clip's frame indices or rate are not known.
    """
    if not clip.source_fps or len(clip.frame_indices) != clip.num_frames:
        detail = (
            f"{len(clip.frame_indices)} frame indices for {clip.num_frames} frames at {clip.source_fps} fps"
        )
        raise LayoutRefused(DegradeReason.LAYOUT_PARAMETER_MISSING, f"timestamps need both: {detail}")
    indices = list(clip.frame_indices)
    indices += [indices[-1]] * (-len(indices) % FRAMES_PER_GROUP)
    seconds = [index / clip.source_fps for index in indices]
    return [(a + b) / 2 for a, b in zip(seconds[::2], seconds[1::2], strict=True)]


def layout(source: Source) -> Qwen3VLLayout | None:
    family = source.named(_ARCHITECTURES)
    image = PatchGrid.read(source.settings, source.kwargs(Modality.IMAGE)) if family else None
    if family is None or image is None:
        return None
    video_id = source.config.get("video_token_id")
    video = _video(source, image, video_id) if video_id is not None else None
    return Qwen3VLLayout(family, source.token("image_token_id"), image, video_id, video)


def _video(source: Source, image: PatchGrid, video_id: int) -> Qwen3Video | None:
    """None where the settings are none that `clip_settings` has, or tokens are other than a picture's."""
    settings = clip_settings(source, "Qwen3VLVideoProcessor")
    if not settings or source.files.tokenizer is None:
        return None
    grid = PatchGrid.read({"patch_size": 16, **settings}, class_size=_VIDEO_SIZE, reads_flat_limits=False)
    # vLLM (0.32) counts a clip's tokens by the image processor's merge size.
    if grid is None or grid.merge_size != image.merge_size:
        return None
    start, end = source.token("vision_start_token_id"), source.token("vision_end_token_id")
    return Qwen3Video(start, video_id, end, grid, source.encoder(), source.options.video_pruning_rate)

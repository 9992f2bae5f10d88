"""Qwen2-VL and Qwen2.5-VL: one placeholder becomes a run of itself, for pictures and clips alike.

A clip is resized frame by frame with the picture's arithmetic, and two frames make one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from processors.families.evs import retained_tokens
from processors.families.qwen import FRAMES_PER_GROUP, QwenLayout, check_rows, clip_settings
from processors.families.smart_resize import PatchGrid
from processors.families.source import Source
from processors.layout import LayoutRefused, Replacement, Shape, run_of
from sightline_types import DegradeReason, Modality, VideoShape

__all__ = ["Qwen2VLLayout", "layout"]

_ARCHITECTURES = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
}
# Limits of transformers' Qwen2VLVideoProcessor where its settings are silent.
_VIDEO_SIZE = {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}


@dataclass(frozen=True)
class Qwen2VLLayout(QwenLayout):
    """video: None where clips are not laid out exactly. pruning_rate: of Qwen2.5-VL's clips.

    merges_clips: the engine takes several clips for one item, with one identity of its own (SGLang 0.5.23,
    which tells clips apart by their groups of frames, and these have one run a clip).
    """

    family: str
    image_id: int
    image: PatchGrid
    video_id: int | None = None
    video: PatchGrid | None = None
    pruning_rate: float = 0.0
    merges_clips: bool = False

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        if modality is Modality.IMAGE or self.video is None:
            return {"id": self.image_id, **self.image.parameters}
        return {"id": self.video_id, **self.video.parameters, "pruning": self.pruning_rate}

    def holds_only_cold(self, shapes: Sequence[Shape | None]) -> bool:
        return self.merges_clips and sum(isinstance(shape, VideoShape) for shape in shapes) > 1

    def replacement(self, shape: Shape) -> Replacement:
        if not isinstance(shape, VideoShape):
            return run_of(self.image_id, self.image.num_tokens(shape))
        assert self.video is not None and self.video_id is not None, "asked for what `modalities` lacks"
        if shape.num_frames < 1:
            raise LayoutRefused(DegradeReason.VIDEO_REFUSED, "a clip without frames")
        check_rows(shape)
        groups = -(-shape.num_frames // FRAMES_PER_GROUP)
        per_group = self.video.num_tokens(shape.size)
        if self.pruning_rate:
            return run_of(self.video_id, retained_tokens(per_group, groups, self.pruning_rate))
        return run_of(self.video_id, groups * per_group)


def layout(source: Source) -> Qwen2VLLayout | None:
    family = source.named(_ARCHITECTURES)
    image = PatchGrid.read(source.settings, source.kwargs(Modality.IMAGE)) if family else None
    if family is None or image is None:
        return None
    rate = source.options.video_pruning_rate
    video_id = source.config.get("video_token_id")
    video = None if rate and family == "qwen2_vl" else _video(source, image)
    merges = source.options.engine == "sglang"
    return Qwen2VLLayout(
        family, source.token("image_token_id"), image, video_id, video if video_id else None, rate, merges
    )


def _video(source: Source, image: PatchGrid) -> PatchGrid | None:
    """None where the settings are none that `clip_settings` has, or tokens are other than a picture's."""
    settings = clip_settings(source, "Qwen2VLVideoProcessor")
    if settings is None or settings.get("do_sample_frames"):
        return None  # vLLM 0.32 hands this processor no times to sample by, and it raises
    grid = PatchGrid.read(settings, class_size=_VIDEO_SIZE)
    # vLLM (0.32) counts a clip's tokens by the image processor's merge size.
    return grid if grid is not None and grid.merge_size == image.merge_size else None

"""What the layouts of all Qwen-VL families share: which token stands for which item, and what of a video
processor's settings is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processors.families.source import Source
from processors.layout import FamilyLayout, LayoutRefused
from sightline_types import DegradeReason, Modality, VideoShape

__all__ = ["FRAMES_PER_GROUP", "QwenLayout", "check_rows", "clip_settings"]

FRAMES_PER_GROUP = 2


class QwenLayout(FamilyLayout):
    """video_id: None where config.json names none. video: None where clips are not laid out exactly."""

    image_id: int
    video_id: int | None
    video: object | None

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        tokens = {Modality.IMAGE: self.image_id}
        return tokens if self.video_id is None else {**tokens, Modality.VIDEO: self.video_id}

    @property
    def frames(self) -> Mapping[Modality, tuple[str, str]]:
        return dict.fromkeys(Modality, ("<|vision_start|>", "<|vision_end|>"))

    @property
    def edges_are_areas(self) -> bool:
        return True

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset({Modality.IMAGE, Modality.VIDEO} if self.video else {Modality.IMAGE})


def clip_settings(source: Source, processor: str) -> Mapping[str, Any] | None:
    """The settings of the video processor, in its own file or the image processor's.

    None where they make a processor of another class than `processor`, or where a per-frame cap, groups of
    other than two frames, or the engine's own settings are in play.
    """
    settings = source.files.video_preprocessor or source.settings
    if settings.get("cap_pixels_per_frame") or source.kwargs(Modality.VIDEO):
        return None
    if settings.get("temporal_patch_size", FRAMES_PER_GROUP) != FRAMES_PER_GROUP:
        return None
    return settings if _processor_class(settings) in (None, processor) else None


def _processor_class(settings: Mapping[str, Any]) -> str | None:
    """The class that transformers (5.19, `AutoVideoProcessor`) makes; None where the model's type says it.

    Settings that name no class of their own are read as the image processor's file; only of slow image
    processors there are video processors of the same name.
    """
    if "AutoVideoProcessor" in (settings.get("auto_map") or {}):
        return "code of the model's own"
    if (named := settings.get("video_processor_type")) is not None:
        return str(named)
    derived = str(settings.get("image_processor_type") or "").replace("ImageProcessor", "VideoProcessor")
    return None if not derived or derived.endswith("Fast") else derived


def check_rows(clip: VideoShape) -> None:
    """
    Raises:
        LayoutRefused: frames of one row of pixels, which transformers (5.19) takes for frames of one colour.
    """
    if clip.size.height == 1:
        raise LayoutRefused(DegradeReason.VIDEO_REFUSED, f"frames of one row of pixels ({clip.size})")

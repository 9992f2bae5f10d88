"""Clips of Nemotron 3 Nano Omni: groups of frames, each with the text of its frames' times before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from processors.families.evs import retained_tokens
from processors.families.source import Encode, Source
from processors.layout import LayoutRefused, Replacement
from sightline_types import DegradeReason, ImageSize, VideoShape

__all__ = ["NemotronVideo", "frame_patches", "separators"]


@dataclass(frozen=True)
class NemotronVideo:
    """group: frames that share tokens. target: patches of a frame. pruning_rate: of vLLM's `evs`."""

    start_id: int
    image_id: int
    end_id: int
    group: int
    target: int
    keeps_ratio: bool
    encode: Encode = field(repr=False, compare=False)
    pruning_rate: float = 0.0

    @classmethod
    def read(cls, source: Source, patch: int, tokens: tuple[int, int, int]) -> NemotronVideo | None:
        """None where the files ask for two targets, or there is no tokenizer. tokens: start, image, end."""
        vision = source.vision
        target, pixels = vision.get("video_target_num_patches"), vision.get("video_target_img_size")
        if (target is not None and pixels is not None) or source.files.tokenizer is None:
            return None
        fixed = pixels or source.number(source.config, "force_image_size", 512)
        return cls(
            *tokens,
            group=source.number(vision, "video_temporal_patch_size", 1),
            target=math.ceil(fixed / patch) ** 2 if target is None else int(target),
            keeps_ratio=bool(vision.get("video_maintain_aspect_ratio")) and (target or pixels) is not None,
            encode=source.encoder(),
            pruning_rate=source.options.video_pruning_rate,
        )

    @property
    def parameters(self) -> dict[str, object]:
        frames = f"{self.group}x{self.target}"
        return {"frames": frames, "ratio": self.keeps_ratio, "pruning": self.pruning_rate}

    def counts(self, clip: VideoShape) -> list[int]:
        """Tokens of each group."""
        rows, columns = frame_patches(clip.size, self.target, self.keeps_ratio)
        each, groups = (rows // 2) * (columns // 2), -(-clip.num_frames // self.group)
        if not self.pruning_rate:
            return [each] * groups
        return [retained_tokens(each, groups, self.pruning_rate)] + [0] * (groups - 1)

    def replacement(self, clip: VideoShape) -> Replacement:
        """
        Raises:
            LayoutRefused: the clip's frame indices or rate are not known.
        """
        if not clip.source_fps or not clip.num_frames or len(clip.frame_indices) != clip.num_frames:
            detail = "the times of a clip's frames need its rate and every frame's index"
            raise LayoutRefused(DegradeReason.LAYOUT_PARAMETER_MISSING, detail)
        ids: list[int] = []
        texts = separators(clip.frame_indices, clip.source_fps, self.group)
        for text, count in zip(texts, self.counts(clip), strict=True):
            ids += [*self.encode(text), self.start_id, *[self.image_id] * count, self.end_id]
        return Replacement(np.array(ids, dtype=np.int64))


def frame_patches(size: ImageSize, target: int, keeps_ratio: bool) -> tuple[int, int]:
    """(rows, columns) of a frame in patches, both even: rounded up if `target` allows, else down.

    Source: `get_video_target_size_and_feature_size` of vLLM 0.32.
    """
    if not keeps_ratio:
        side = int(math.sqrt(target))
        rows = columns = max(1, side)
    else:
        ratio = size.width / max(size.height, 1)
        rows, columns = max(1, round(math.sqrt(target / ratio))), max(1, round(math.sqrt(target * ratio)))
    up, wide = rows + rows % 2, columns + columns % 2
    if up * wide <= target:
        return up, wide
    return max(2, rows - rows % 2), max(2, columns - columns % 2)


def separators(frame_indices: Sequence[int], source_fps: float, group: int) -> list[str]:
    """The text before each group. A frame's time is its index times whole milliseconds a frame."""
    milliseconds = int(1000 / source_fps)
    texts = []
    for first in range(0, len(frame_indices), group):
        frames = []
        for number, index in enumerate(frame_indices[first : first + group], first + 1):
            name = "Frame" if number == first + 1 else "frame"
            frames.append(f"{name} {number} sampled at {index * milliseconds / 1000:.2f} seconds")
        texts.append(("\n" if first else "") + " and ".join(frames) + ": ")
    return texts

"""Images of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one placeholder becomes a run of itself.

The arithmetic is `smart_resize` of transformers' Qwen2VLImageProcessor, which all of them use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from processors.layout import ImageLayout, SizeRefused
from processors.model_files import ModelFiles
from sightline_types import ImageSize

__all__ = ["QwenImageLayout", "image_limits", "layout_from_files", "layout_from_processor"]

MAX_ASPECT_RATIO = 200

_ARCHITECTURES = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
}
_MODEL_TYPES = frozenset(_ARCHITECTURES.values())

# Defaults of the image processor's class, where preprocessor_config.json is silent.
_PATCH_SIZE, _MERGE_SIZE = 14, 2
_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}


@dataclass(frozen=True)
class QwenImageLayout:
    """The `ImageLayout` of one model.

    patch_size: pixels of a patch's side. merge_size: patches of a token's side.

    min_pixels, max_pixels: of the resized picture (inclusive).
    """

    family: str
    placeholder_id: int
    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int

    @property
    def fingerprint(self) -> str:
        return (
            f"qwen_vl/1:{self.family}:id={self.placeholder_id}:patch={self.patch_size}"
            f":merge={self.merge_size}:pixels={self.min_pixels}-{self.max_pixels}"
        )

    def num_tokens(self, size: ImageSize) -> int:
        factor = self.patch_size * self.merge_size
        height, width = resized(size, factor, self.min_pixels, self.max_pixels)
        return (height // factor) * (width // factor)

    def replacement(self, size: ImageSize) -> npt.NDArray[np.int64]:
        return np.full(self.num_tokens(size), self.placeholder_id, dtype=np.int64)


def resized(size: ImageSize, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) after the processor's resize: multiples of `factor`, within the limits.

    Rounding is half to even, and a slim side may round to 0: the processor does not stop it there,
    and the lower limit then lifts it. The order of the divisions is the processor's, too.

    Raises:
        SizeRefused: one side is more than 200 times the other.
    """
    height, width = size.height, size.width
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise SizeRefused(f"aspect ratio {ratio:.1f} of {size} is above {MAX_ASPECT_RATIO}")
    rounded_height, rounded_width = round(height / factor) * factor, round(width / factor) * factor
    if rounded_height * rounded_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        return _floor(height / shrink / factor, factor), _floor(width / shrink / factor, factor)
    if rounded_height * rounded_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rounded_height, rounded_width


def _floor(units: float, factor: int) -> int:
    return max(factor, math.floor(units) * factor)


def layout_from_processor(
    model_type: str, placeholder_id: int, patch_size: int, merge_size: int, min_pixels: int, max_pixels: int
) -> ImageLayout:
    """The layout with explicit numbers, for comparison with an installed processor's own.

    Raises:
        ValueError: `model_type` is of another family.
    """
    if model_type not in _MODEL_TYPES:
        raise ValueError(f"model type {model_type!r} is none of {sorted(_MODEL_TYPES)}")
    return QwenImageLayout(model_type, placeholder_id, patch_size, merge_size, min_pixels, max_pixels)


def layout_from_files(files: ModelFiles) -> ImageLayout | None:
    """The layout that the model's files ask for; None for another family, or where they leave it open."""
    family = _family(files)
    limits = image_limits(files.preprocessor)
    placeholder = files.config.get("image_token_id")
    if (
        family is None
        or limits is None
        or placeholder is None
        or not files.preprocessor.get("do_resize", True)
    ):
        return None
    patch_size = int(files.preprocessor.get("patch_size", _PATCH_SIZE))
    merge_size = int(files.preprocessor.get("merge_size", _MERGE_SIZE))
    return QwenImageLayout(family, int(placeholder), patch_size, merge_size, *limits)


def _family(files: ModelFiles) -> str | None:
    if files.model_type:
        return files.model_type if files.model_type in _MODEL_TYPES else None
    named = (_ARCHITECTURES.get(name) for name in files.architectures)
    return next((family for family in named if family is not None), None)


def image_limits(preprocessor: Mapping[str, Any]) -> tuple[int, int] | None:
    """(min_pixels, max_pixels) as the processor reads them: `size` first, then the flat keys over it.

    None where `size` lacks an edge that no flat key fills: the processor raises then.
    """
    given = preprocessor.get("size") or _SIZE
    size = dict(given) if isinstance(given, Mapping) else {}
    for key, flat in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if preprocessor.get(flat) is not None:
            size[key] = preprocessor[flat]
    if not size.get("shortest_edge") or not size.get("longest_edge"):
        return None
    return int(size["shortest_edge"]), int(size["longest_edge"])

"""`smart_resize` of transformers' Qwen2VLImageProcessor: the arithmetic of all Qwen-VL images.

Also the limits as that processor reads them from its settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from processors.families.source import positive
from processors.layout import LayoutRefused
from sightline_types import DegradeReason, ImageSize

__all__ = ["PatchGrid", "pixel_limits", "resized"]

MAX_ASPECT_RATIO = 200

# Defaults of the image processor's class, where preprocessor_config.json is silent.
_PATCH_SIZE, _MERGE_SIZE = 14, 2
_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
_FLAT_LIMITS = ("min_pixels", "max_pixels")
#: What an engine may be told of its processor. Another patch or merge size contradicts the model's weights.
_KWARGS = frozenset(
    "size min_pixels max_pixels do_resize resample do_rescale rescale_factor do_normalize image_mean "
    "image_std do_convert_rgb fps num_frames min_frames max_frames do_sample_frames return_tensors "
    "use_fast device disable_grouping".split()
)


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """patch_size: pixels of a patch's side. merge_size: patches of a token's side.

    min_pixels, max_pixels: of the resized picture (inclusive).
    """

    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int

    @classmethod
    def read(
        cls,
        settings: Mapping[str, Any],
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        class_size: Mapping[str, int] = _SIZE,
        *,
        reads_flat_limits: bool = True,
    ) -> PatchGrid | None:
        """None where the settings leave it open, or switch the resize off.

        kwargs: `mm_processor_kwargs`, which win over the processor's own settings; None for others than
            limits and what changes no layout.
        class_size: the limits of the processor's class.
        reads_flat_limits: whether the class looks at `min_pixels` and `max_pixels` beside `size`.
        """
        if not reads_flat_limits:
            settings = {name: value for name, value in settings.items() if name not in _FLAT_LIMITS}
        limits = pixel_limits(settings, class_size)
        if kwargs.keys() - _KWARGS:
            return None
        if limits is None or not kwargs.get("do_resize", settings.get("do_resize", True)):
            return None
        limits = pixel_limits(kwargs, {"shortest_edge": limits[0], "longest_edge": limits[1]})
        if limits is None:
            return None
        patch = positive(settings.get("patch_size", _PATCH_SIZE))
        merge = positive(settings.get("merge_size", _MERGE_SIZE))
        return None if patch is None or merge is None else cls(patch, merge, *limits)

    @property
    def factor(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.merge_size

    @property
    def parameters(self) -> dict[str, object]:
        return {
            "patch": self.patch_size,
            "merge": self.merge_size,
            "pixels": f"{self.min_pixels}-{self.max_pixels}",
        }

    def num_tokens(self, size: ImageSize) -> int:
        """Tokens of one picture or frame.

        Raises:
            LayoutRefused: the processor raises on this size.
        """
        height, width = resized(size, self.factor, self.min_pixels, self.max_pixels)
        return (height // self.factor) * (width // self.factor)


def resized(size: ImageSize, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) after the processor's resize: multiples of `factor`, within the limits.

    Rounding is half to even, and a slim side may round to 0: the processor does not stop it there,
    and the lower limit then lifts it. The order of the divisions is the processor's, too.

    Raises:
        LayoutRefused: one side is more than 200 times the other.
    """
    height, width = size.height, size.width
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        detail = f"aspect ratio {ratio:.1f} of {size} is above {MAX_ASPECT_RATIO}"
        raise LayoutRefused(DegradeReason.SIZE_REFUSED, detail)
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


def pixel_limits(
    settings: Mapping[str, Any], class_size: Mapping[str, int] = _SIZE
) -> tuple[int, int] | None:
    """(min_pixels, max_pixels) as the processor reads them: `size` first, then the flat keys over it.

    None where `size` lacks an edge that no flat key fills, or one is no number of pixels: the processor
    raises then.
    """
    given = settings.get("size") or class_size
    size = dict(given) if isinstance(given, Mapping) else {}
    for key, flat in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if settings.get(flat) is not None:
            size[key] = settings[flat]
    shortest, longest = positive(size.get("shortest_edge")), positive(size.get("longest_edge"))
    return None if shortest is None or longest is None else (shortest, longest)

"""`mm_processor_kwargs` of a request: which of them may reach the engine's processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from processors.errors import RequestError
from processors.layout import FamilyLayout

__all__ = ["check_processor_kwargs", "edges_are_areas"]

#: They steer how finely media are sampled. Anything else can contradict the model's weights, which vLLM
#: (0.32) finds out in its engine process: `{"patch_size": 7}` ends it, and every request in it.
_SERVED_NAMES = """
min_pixels max_pixels size num_crops dynamic_image_size min_dynamic_patch max_dynamic_patch use_thumbnail
crop_to_patches min_patches max_patches do_pan_and_scan pan_and_scan_min_crop_size pan_and_scan_max_num_crops
pan_and_scan_min_ratio_to_activate fps num_frames do_sample_frames
"""
SERVED = tuple(_SERVED_NAMES.split())
_TILES = frozenset(
    "num_crops min_dynamic_patch max_dynamic_patch min_patches max_patches pan_and_scan_max_num_crops".split()
)
#: Pixels at most: the largest that a Qwen-VL model asks for itself. A processor enlarges small pictures.
MAX_NUMBER = 1 << 24
#: Tiles of a picture at most: processors try every canvas of so many, which takes the cube of it.
MAX_TILES = 64
#: Frames of a clip at most: Qwen3-VL's processor (transformers 5.19) repeats them as often as it is told.
MAX_FRAMES = 768
#: Pixels of a side at most, where `size` is about sides: a processor makes pictures of just that size.
MAX_SIDE = 4096


def check_processor_kwargs(kwargs: Mapping[str, object], *, edges_are_areas: bool) -> None:
    """
    edges_are_areas: see there.

    Raises:
        RequestError: 400 for a name that is not served, or a value that is neither a yes or no, nor a
            number from 0 to its limit, nor (`size`) an object of numbers.
    """
    for name, value in kwargs.items():
        param = f"mm_processor_kwargs.{name[:40]}"
        if name not in SERVED:
            raise RequestError(f"{param} is not served; served are {', '.join(SERVED)}", param=param)
        for part, one, limit in _numbers(name, value, edges_are_areas):
            if not isinstance(one, int | float) or not 0 <= one <= limit:
                path = f"{param}{part}"
                message = f"{path} takes a number from 0 to {limit}, `size` an object of numbers"
                raise RequestError(message, param=param)


def _numbers(name: str, value: object, areas: bool) -> Iterator[tuple[str, object, int]]:
    """Where a number stands, the number, and its limit."""
    if name == "size" and isinstance(value, Mapping):
        for side, pixels in value.items():
            is_area = areas and side in ("shortest_edge", "longest_edge")
            yield f".{str(side)[:40]}", pixels, MAX_NUMBER if is_area else MAX_SIDE
    else:
        yield "", value, MAX_FRAMES if name == "num_frames" else MAX_TILES if name in _TILES else MAX_NUMBER


def edges_are_areas(layout: FamilyLayout | None, settings: Mapping[str, Any]) -> bool:
    """Whether a `size`'s edges are pixels of the whole picture, as Qwen's are, and not of its sides.

    settings: of the model's image processor; where no layout is known, larger limits than a side has tell it.
    """
    size = settings.get("size")
    own = list(size.values()) if isinstance(size, Mapping) else []
    own += [settings.get(name) for name in ("min_pixels", "max_pixels")]
    is_large = any(isinstance(one, int | float) and one > MAX_SIDE for one in own)
    return is_large or (layout is not None and layout.edges_are_areas)

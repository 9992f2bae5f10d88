"""`mm_processor_kwargs` of a request: which of them may reach the engine's processor."""

from __future__ import annotations

from collections.abc import Mapping

from processors.errors import RequestError

__all__ = ["check_processor_kwargs"]

#: They steer how finely media are sampled. Anything else can contradict the model's weights, which vLLM
#: (0.32) finds out in its engine process: `{"patch_size": 7}` ends it, and every request in it.
_SERVED_NAMES = """
min_pixels max_pixels size num_crops dynamic_image_size min_dynamic_patch max_dynamic_patch use_thumbnail
crop_to_patches min_patches max_patches do_pan_and_scan pan_and_scan_min_crop_size pan_and_scan_max_num_crops
pan_and_scan_min_ratio_to_activate fps num_frames do_sample_frames
"""
SERVED = tuple(_SERVED_NAMES.split())
#: Pixels at most: the largest that a Qwen-VL model asks for itself. A processor enlarges small pictures.
MAX_NUMBER = 1 << 24


def check_processor_kwargs(kwargs: Mapping[str, object]) -> None:
    """
    Raises:
        RequestError: 400 for a name that is not served, or a value that is neither a yes or no, nor a
            number from 0 to `MAX_NUMBER`, nor (`size`) an object of numbers.
    """
    for name, value in kwargs.items():
        param = f"mm_processor_kwargs.{name[:40]}"
        if name not in SERVED:
            raise RequestError(f"{param} is not served; served are {', '.join(SERVED)}", param=param)
        values = list(value.values()) if name == "size" and isinstance(value, Mapping) else [value]
        if not all(isinstance(one, int | float) and 0 <= one <= MAX_NUMBER for one in values):
            message = f"{param} takes numbers from 0 to {MAX_NUMBER}, `size` an object of them"
            raise RequestError(message, param=param)

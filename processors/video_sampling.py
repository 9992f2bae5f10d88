"""Which frames of a clip are given to the model.

`uniform` is our own rule, for clips that the ingress decodes. The others are what an engine's own loader
does for a family, for clips that a replica decodes: `opencv`, `qwen3_vl` and `qwen2_vl` are vLLM's (0.32),
`sglang_qwen` is SGLang's (0.5.23). `max_frames` stands for the loader's argument of that name, and for
`num_frames` of the `opencv` loader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Sampling", "SamplingRule", "frame_indices", "loader_rule"]

SamplingRule = Literal["uniform", "opencv", "qwen3_vl", "qwen2_vl", "sglang_qwen"]

#: What the loaders of the Qwen families aim at, and the least they take where the clip has them.
_TARGET_FPS = 2.0
_MIN_FRAMES = 4
#: No loader gives more, whatever it is told.
_LOADER_MAX_FRAMES = 768
_TEMPORAL_PATCH = 2
#: vLLM chooses a loader by the model's video processor.
_VLLM_LOADERS: dict[str, SamplingRule] = {
    "Qwen3VLVideoProcessor": "qwen3_vl",
    "Qwen2VLVideoProcessor": "qwen2_vl",
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """A rule and its limit. max_frames: at least 1."""

    rule: SamplingRule = "uniform"
    max_frames: int = 32

    def __post_init__(self) -> None:
        if self.max_frames < 1:
            raise ValueError(f"max_frames is {self.max_frames}; a clip needs at least one frame")


def frame_indices(sampling: Sampling, total_frames: int, source_fps: float) -> tuple[int, ...]:
    """The frames to take of a clip, ascending, without repeats, at least one.

    total_frames: of the file, at least 1. source_fps: frames a second of the file, above 0.
    """
    if total_frames < 1 or source_fps <= 0:
        raise ValueError(f"a clip of {total_frames} frames at {source_fps} a second has nothing to sample")
    indices = _RULES[sampling.rule](total_frames, source_fps, sampling.max_frames)
    return tuple(dict.fromkeys(indices))


def loader_rule(engine: str, video_preprocessor: Mapping[str, Any]) -> SamplingRule:
    """What the engine's own loader does for a model with these settings of its video processor."""
    loader = _VLLM_LOADERS.get(str(video_preprocessor.get("video_processor_type")), "opencv")
    return "sglang_qwen" if engine == "sglang" and loader != "opencv" else loader


def _uniform(total: int, fps: float, most: int) -> list[int]:
    """First and last frame, and others evenly between: exact in integers, halves rounded up."""
    count = min(most, total)
    if count == 1:
        return [0]
    step = count - 1
    return [(2 * i * (total - 1) + step) // (2 * step) for i in range(count)]


def _opencv(total: int, fps: float, most: int) -> list[int]:
    count = min(most, total)
    return _ints(np.linspace(0, total - 1, count, dtype=int))


def _qwen3_vl(total: int, fps: float, most: int) -> list[int]:
    """Two frames a second; numpy rounds halves to even."""
    wanted = max(int(total / fps * _TARGET_FPS), _MIN_FRAMES)
    count = min(wanted, most, _LOADER_MAX_FRAMES, total)
    return _ints(np.linspace(0, total - 1, count).round())


def _qwen2_vl(total: int, fps: float, most: int) -> list[int]:
    """Two frames a second, an even number; positions in float32, as torch.arange makes them (one more than
    asked for, where the quotient is rounded down).

    Beyond 30,000 frames torch's own result depends on the width of the CPU's vectors, by one frame.
    """
    limit = _even(min(most, _LOADER_MAX_FRAMES, total))
    wanted = min(max(total / fps * _TARGET_FPS, _MIN_FRAMES), limit, total)
    count = max(_even(wanted), 1)  # the loader divides by 0 here
    step = total / count
    positions = (np.arange(math.ceil(total / step)) * step).astype(np.float32).astype(np.int32)
    return _ints(np.minimum(positions, total - 1))[:most]


def _sglang_qwen(total: int, fps: float, most: int) -> list[int]:
    """Two frames a second, an even number."""
    limit = _even(min(most, _LOADER_MAX_FRAMES, total))
    count = max(_even(min(max(total / fps * _TARGET_FPS, _MIN_FRAMES), limit)), 1)
    return _ints(np.linspace(0, total - 1, count))


def _ints(positions: npt.NDArray[Any]) -> list[int]:
    return [int(position) for position in positions]


def _even(count: float) -> int:
    return math.floor(count / _TEMPORAL_PATCH) * _TEMPORAL_PATCH


_RULES = {
    "uniform": _uniform,
    "opencv": _opencv,
    "qwen3_vl": _qwen3_vl,
    "qwen2_vl": _qwen2_vl,
    "sglang_qwen": _sglang_qwen,
}

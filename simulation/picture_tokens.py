"""Prompt tokens of pictures in Qwen3-VL, for the sizes that the built-in workloads show.

A table, so that a simulation need not load what knows the families; a test holds it equal to the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

__all__ = ["QWEN3_VL_TOKENS", "PictureTokens"]

#: Tokens of a picture of (width, height) pixels.
PictureTokens = Callable[[int, int], int]

#: By (width, height); transformers 5.18 Qwen2VLImageProcessor, patches of 16, two to a token's side.
QWEN3_VL_TOKENS: Mapping[tuple[int, int], int] = MappingProxyType(
    {
        (64, 64): 64,
        (224, 224): 64,
        (336, 336): 100,
        (640, 480): 300,
        (1024, 768): 768,
        (1280, 720): 880,
        (1920, 1080): 2040,
        (2400, 1080): 2550,
        (2560, 1440): 3600,
        (3840, 2160): 8160,
    }
)

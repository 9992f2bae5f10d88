"""The families whose layouts are known, found by what config.json says, never by the model's name."""

from __future__ import annotations

from collections.abc import Callable

from processors.families import (
    gemma3,
    glm4v,
    internvl,
    kimi,
    llama4,
    llava,
    llava_next,
    nemotron_omni,
    phi3_v,
    pixtral,
    qwen2_vl,
    qwen3_vl,
    qwen_omni,
)
from processors.families.source import LayoutFiles, Source
from processors.layout import FamilyLayout, LayoutOptions, LayoutRefused

__all__ = ["LayoutFiles", "find_layout", "layout_for"]

#: One line a family: its layout from a model's files, None for a model of another family.
_FAMILIES: tuple[Callable[[Source], FamilyLayout | None], ...] = (
    qwen2_vl.layout,
    qwen3_vl.layout,
    llava.layout,
    llava_next.layout,
    llama4.layout,
    kimi.layout,
    phi3_v.layout,
    pixtral.layout,
    nemotron_omni.layout,
    glm4v.layout,
    qwen_omni.layout,
    internvl.layout,
    gemma3.layout,
)


def find_layout(files: LayoutFiles, options: LayoutOptions | None = None) -> FamilyLayout | None:
    """The layout of the model's media; None where the family is not known, or its files leave it open.

    Raises:
        LayoutRefused: the family is known, and something that its layout needs is missing.
    """
    source = Source(files, options or LayoutOptions())
    found = (layout(source) for layout in _FAMILIES)
    return next((layout for layout in found if layout is not None), None)


def layout_for(files: LayoutFiles, options: LayoutOptions | None = None) -> FamilyLayout | None:
    """`find_layout`, with None for a refusal too."""
    try:
        return find_layout(files, options)
    except LayoutRefused:
        return None

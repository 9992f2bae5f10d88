"""The families whose layouts are known, found by what config.json says, never by the model's name."""

from __future__ import annotations

from processors.families import qwen_vl
from processors.layout import ImageLayout
from processors.model_files import ModelFiles

__all__ = ["layout_for"]


def layout_for(files: ModelFiles) -> ImageLayout | None:
    """The layout of the model's images; None where it is not known exactly."""
    return qwen_vl.layout_from_files(files)

"""Pixtral in transformers' format, and Mistral-Small-3.1: rows of placeholders with a break after each.

Source: transformers' `PixtralProcessor`; vLLM 0.32's `PixtralHFEncoderInfo`, `Mistral3HFEncoderInfo`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from processors.families.source import Source, positive
from processors.layout import FamilyLayout, LayoutRefused, Replacement, Shape, embed_runs
from sightline_types import DegradeReason, ImageSize, Modality, VideoShape

__all__ = ["PixtralLayout", "layout"]

_ARCHITECTURES = {
    "LlavaForConditionalGeneration": "llava",
    "Mistral3ForConditionalGeneration": "mistral3",
}
# Of the image processor's class where its settings are silent.
_SIZE = {"longest_edge": 1024}


@dataclass(frozen=True)
class PixtralLayout(FamilyLayout):
    """longest: pixels of the longer side at most. token_side: pixels of a token's side."""

    family: str
    image_id: int
    break_id: int
    end_id: int
    longest: int
    token_side: int

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.image_id}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        ids = f"{self.image_id}/{self.break_id}/{self.end_id}"
        return {"ids": ids, "longest": self.longest, "side": self.token_side}

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        columns, rows = self.grid(shape)
        ids = np.full((rows, columns + 1), self.image_id, dtype=np.int64)
        ids[:, -1] = self.break_id
        ids[-1, -1] = self.end_id
        return Replacement(ids.ravel(), embed_runs(ids.ravel(), self.image_id))

    def grid(self, size: ImageSize) -> tuple[int, int]:
        """(columns, rows) of tokens.

        Raises:
            LayoutRefused: the shorter side shrinks to nothing.
        """
        width, height = size.width, size.height
        ratio = max(width / self.longest, height / self.longest)
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        if width < 1 or height < 1:
            raise LayoutRefused(DegradeReason.SIZE_REFUSED, f"{size} shrinks to {width}x{height}")
        return (width - 1) // self.token_side + 1, (height - 1) // self.token_side + 1


def layout(source: Source) -> PixtralLayout | None:
    family = source.named(_ARCHITECTURES)
    if family is None or source.options.engine == "sglang" or source.vision.get("model_type") != "pixtral":
        return None
    if source.kwargs(Modality.IMAGE) or not source.settings.get("do_resize", True):
        return None
    size = source.settings.get("size", _SIZE)
    longest = positive(size.get("longest_edge")) if isinstance(size, Mapping) else None
    # A size without a longest edge is no limit but a shape. Where processor and model disagree, vLLM counts a
    # Pixtral by the model and the processor does not.
    if longest is None or (family == "llava" and longest != source.number(source.vision, "image_size", 1024)):
        return None
    merge = source.number(source.config, "spatial_merge_size", 2) if family == "mistral3" else 1
    return PixtralLayout(
        family="mistral3" if family == "mistral3" else "pixtral",
        image_id=source.token("image_token_index", "image_token_id", text="[IMG]"),
        break_id=source.token(text="[IMG_BREAK]"),
        end_id=source.token(text="[IMG_END]"),
        longest=longest,
        token_side=source.number(source.vision, "patch_size", 16) * merge,
    )

"""Kimi-K2.5, K2.6 (one model type) and Kimi-K3: pictures are never enlarged, and padded up to whole tokens.

K2.5's prompt holds the frame around the picture already, and its one pad becomes a run. K3's has one
placeholder, which becomes the frame, the picture's own size as text, and the run.
Source: transformers' `Kimi_K25ImageProcessor`, vLLM 0.32's `KimiK25FusedVisionProcessor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from processors.families.source import Encode, Source, positive
from processors.layout import FamilyLayout, LayoutRefused, Replacement, Shape, embed_runs, run_of
from sightline_types import ImageSize, Modality, VideoShape

__all__ = ["KimiGrid", "KimiK3Layout", "KimiK25Layout", "layout"]

_ARCHITECTURES = {
    "KimiK25ForConditionalGeneration": "kimi_k25",
    "KimiK3ForConditionalGeneration": "kimi_k3",
}


@dataclass(frozen=True, slots=True)
class KimiGrid:
    """patch: pixels. merge: patches of a token's side. limit: patches of a picture, side_limit: of a side.

    fixed: tokens of any picture, where the model fixes them.
    """

    patch: int
    merge: int
    limit: int
    side_limit: int
    fixed: int | None = None

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> KimiGrid | None:
        """None where the settings lack a limit, or give what is no number for one."""
        merge, fixed = settings.get("merge_kernel_size", 2), settings.get("fixed_output_tokens")
        patch = positive(settings.get("patch_size", 14))
        side = positive(merge[0] if isinstance(merge, list | tuple) and merge else merge)
        limit, side_limit = (
            positive(settings.get(name)) for name in ("in_patch_limit", "patch_limit_on_one_side")
        )
        if patch is None or side is None or limit is None or side_limit is None:
            return None
        if fixed is not None and positive(fixed) is None:
            return None
        return cls(patch, side, limit, side_limit, positive(fixed))

    @property
    def parameters(self) -> dict[str, object]:
        limits = f"{self.limit}/{self.side_limit}/{self.fixed}"
        return {"patch": self.patch, "merge": self.merge, "limits": limits}

    def num_tokens(self, size: ImageSize) -> int:
        """A clip's chunk of frames counts as one of its frames, under the limit for frames."""
        if self.fixed is not None:
            return self.fixed
        patches = max(1, size.width // self.patch) * max(1, size.height // self.patch)
        longest = self.side_limit * self.patch
        scale = min(1.0, math.sqrt(self.limit / patches), longest / size.width, longest / size.height)
        columns, rows = (self._side(side, scale, longest) for side in (size.width, size.height))
        return columns * rows

    def _side(self, pixels: int, scale: float, longest: int) -> int:
        return math.ceil(min(max(1, int(pixels * scale)), longest) / (self.patch * self.merge))


@dataclass(frozen=True)
class KimiK25Layout(FamilyLayout):
    family: str
    pad_id: int
    grid: KimiGrid

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.pad_id}

    @property
    def frames(self) -> Mapping[Modality, tuple[str, str]]:
        return {Modality.IMAGE: ("<|media_begin|>image<|media_content|>", "<|media_end|>")}

    @property
    def engine_names(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: "vision_chunk"}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        return {"id": self.pad_id, **self.grid.parameters}

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        return run_of(self.pad_id, self.grid.num_tokens(shape))


@dataclass(frozen=True)
class KimiK3Layout(FamilyLayout):
    """begin, content, end: the tokens of the frame around each picture."""

    family: str
    placeholder_id: int
    pad_id: int
    begin_id: int
    content_id: int
    end_id: int
    grid: KimiGrid
    encode: Encode = field(repr=False, compare=False)

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.placeholder_id}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        ids = (self.placeholder_id, self.pad_id, self.begin_id, self.content_id, self.end_id)
        return {"ids": "/".join(map(str, ids)), **self.grid.parameters}

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        head = [self.begin_id, *self.encode(f"image {shape.width}x{shape.height}"), self.content_id]
        ids = np.array([*head, *[self.pad_id] * self.grid.num_tokens(shape), self.end_id], dtype=np.int64)
        return Replacement(ids, embed_runs(ids, self.pad_id))


def layout(source: Source) -> KimiK25Layout | KimiK3Layout | None:
    family = source.named(_ARCHITECTURES)
    if family is None or source.options.engine == "sglang" or source.kwargs(Modality.IMAGE):
        return None  # SGLang 0.5.23 takes no identities of ours for Kimi
    # Where the image processor's file lacks them, config.json may have them.
    settings = source.settings.get("media_proc_cfg") or source.config.get("media_proc_cfg") or source.settings
    grid = KimiGrid.read(settings) if isinstance(settings, Mapping) else None
    if grid is None:
        return None
    pad = _pad(source)
    if family == "kimi_k25":
        return KimiK25Layout(family, pad, grid)
    named = str(source.config.get("image_placeholder", "<|kimi_image_placeholder|>"))
    texts = (named, "<|media_begin|>", "<|media_content|>", "<|media_end|>")
    placeholder, begin, content, end = (source.token(text=text) for text in texts)
    return KimiK3Layout(family, placeholder, pad, begin, content, end, grid, source.encoder())


def _pad(source: Source) -> int:
    """Where tokenizer and config.json differ, vLLM believes the tokenizer."""
    try:
        return source.token(text="<|media_pad|>")
    except LayoutRefused:
        return source.token("media_placeholder_token_id")

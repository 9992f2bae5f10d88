"""Nemotron 3 Nano Omni on vLLM: pictures share one budget a request; a clip is text and runs in turn.

Source: `DynamicResolutionImageTiler` and `NanoNemotronVLProcessor` of vLLM 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from processors.families.nemotron_video import NemotronVideo
from processors.families.source import Source
from processors.families.text_placeholders import expand_text
from processors.layout import (
    Expansion,
    FamilyLayout,
    LayoutRefused,
    Refusal,
    Replacement,
    Shape,
    embed_runs,
)
from sightline_types import DegradeReason, ImageSize, Modality, VideoShape

__all__ = ["NemotronLayout", "PatchBudget", "layout"]

_ARCHITECTURES = {
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Nano_VL_V2": "NemotronH_Nano_VL_V2",
    "NemotronH_Omni_Reasoning_V3": "nemotron_h_omni",
}
_ROUNDS = 10
#: Tokens that vLLM keeps free of a request's pictures.
_RESERVED = 4
_CLIP_TEXT = "<video>"
#: Patches of a token: two by two.
_MERGED = 4


@dataclass(frozen=True, slots=True)
class PatchBudget:
    """patch: pixels. least, most: patches of one picture."""

    patch: int
    least: int
    most: int

    def grids(self, sizes: Sequence[ImageSize], tokens: int) -> list[tuple[int, int]]:
        """(columns, rows) in patches of each picture, when all together may take `tokens`.

        Raises:
            LayoutRefused: a picture so slim that no patch is left of a side.
        """
        available = max(tokens * _MERGED, self.least * len(sizes))
        budgets = [max(min(available, self.most), self.least)] * len(sizes)
        grids: list[tuple[int, int]] = []
        for _ in range(_ROUNDS):
            grids = [self.grid(size, budget) for size, budget in zip(sizes, budgets, strict=True)]
            taken = [columns * rows for columns, rows in grids]
            if sum(taken) <= available:
                break
            scale = available / sum(taken)
            shrunk = [max(self.least, int(patches * scale)) for patches in taken]
            smaller = any(new < old for new, old in zip(shrunk, budgets, strict=True))
            budgets = shrunk if smaller else [self.least] * len(sizes)
        return grids

    def grid(self, size: ImageSize, budget: int) -> tuple[int, int]:
        """(columns, rows) of one picture within `budget` patches, both even."""
        rows, columns = (round(side / self.patch + 0.5) for side in (size.height, size.width))
        factor = min(math.sqrt(budget / (rows * columns)), 1.0)
        rows, columns = math.floor(factor * rows), math.floor(factor * columns)
        if rows < 1 or columns < 1:
            raise LayoutRefused(DegradeReason.SIZE_REFUSED, f"{size} leaves a side without a patch")
        if budget > self.least and rows * columns < self.least:
            grow = math.sqrt(self.least / (rows * columns))
            rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
        rows = _even(rows, columns, budget)
        return _even(columns, rows, budget), rows

    def binds(self, sizes: Sequence[ImageSize], tokens: int) -> bool:
        """Whether the pictures would take more if the request had more tokens."""
        free = self.most * len(sizes)
        return self.grids(sizes, tokens) != self.grids(sizes, free)


def _even(side: int, other: int, budget: int) -> int:
    if side % 2 == 0:
        return side
    return side + 1 if (side + 1) * other <= budget else max(2, side - 1)


@dataclass(frozen=True)
class NemotronLayout(FamilyLayout):
    """max_model_len: the worker's, in tokens; every picture's size depends on it."""

    family: str
    image_id: int
    start_id: int
    end_id: int
    budget: PatchBudget
    max_model_len: int | None
    video: NemotronVideo | None
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, repr=False, compare=False)

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.image_id}

    @property
    def placeholder_texts(self) -> Mapping[Modality, str]:
        return {Modality.VIDEO: _CLIP_TEXT}

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset((Modality.IMAGE, Modality.VIDEO) if self.video else (Modality.IMAGE,))

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        ids = f"{self.image_id}/{self.start_id}/{self.end_id}"
        if modality is Modality.IMAGE or self.video is None:
            budget = f"{self.budget.patch}/{self.budget.least}/{self.budget.most}"
            return {"ids": ids, "budget": budget, "max_model_len": self.max_model_len}
        return {"ids": ids, **self.video.parameters}

    def replacement(self, shape: Shape) -> Replacement:
        if isinstance(shape, VideoShape):
            assert self.video is not None, "asked for what `modalities` lacks"
            return self.video.replacement(shape)
        ((columns, rows),) = self.budget.grids([shape], self._tokens())
        return self._picture(columns, rows)

    def replacements(self, shapes: Sequence[Shape | None]) -> tuple[Replacement | Refusal, ...]:
        if any(isinstance(shape, VideoShape) for shape in shapes) and len(shapes) > 1:
            detail = f"{self.family} is exact for one video alone, not for {len(shapes)} media items"
            return (Refusal(DegradeReason.MEDIA_MIX, detail),) * len(shapes)
        sizes = [shape for shape in shapes if isinstance(shape, ImageSize)]
        if len(sizes) < 2 or len(sizes) < len(shapes):
            return tuple(self._alone(shape, len(shapes)) for shape in shapes)
        try:
            grids = self.budget.grids(sizes, self._tokens())
        except LayoutRefused as error:
            return (Refusal(error.reason, error.detail),) * len(shapes)
        return tuple(self._picture(columns, rows) for columns, rows in grids)

    def holds_only_cold(self, shapes: Sequence[Shape | None]) -> bool:
        sizes = [shape for shape in shapes if isinstance(shape, ImageSize)]
        try:
            return len(sizes) > 1 and self.budget.binds(sizes, self._tokens())
        except LayoutRefused:
            return False

    def _alone(self, shape: Shape | None, num_items: int) -> Replacement | Refusal:
        """Beside a picture of unknown size, what is left of the budget is not known."""
        plan = self.try_replacement(shape)
        if num_items == 1 or isinstance(plan, Refusal):
            return plan
        detail = "the request's pictures share a budget, and one has no known size"
        return Refusal(DegradeReason.SIZE_UNKNOWN, detail, len(plan.ids))

    def _tokens(self) -> int:
        if self.max_model_len is None:
            detail = f"{self.family} sizes pictures by the worker's max_model_len, which is not known"
            raise LayoutRefused(DegradeReason.LAYOUT_PARAMETER_MISSING, detail)
        return self.max_model_len - _RESERVED

    def _picture(self, columns: int, rows: int) -> Replacement:
        count = columns * rows // _MERGED
        ids = np.array([self.start_id, *[self.image_id] * count, self.end_id], dtype=np.int64)
        return Replacement(ids, embed_runs(ids, self.image_id))

    def expand(self, token_ids: Sequence[int], replacements: Sequence[Replacement | Refusal]) -> Expansion:
        """A clip's placeholder is text; a picture's is a token, and beside one no clip is exact."""
        if self.tokenizer is None or len(replacements) != 1 or self.image_id in token_ids:
            return super().expand(token_ids, replacements)
        return expand_text(self.tokenizer, token_ids, _CLIP_TEXT, replacements, self.image_id)


def layout(source: Source) -> NemotronLayout | None:
    family = source.named(_ARCHITECTURES)
    if family is None or source.options.engine == "sglang" or source.options.processor_kwargs:
        return None
    config, arguments = source.config, source.vision.get("args") or {}
    if config.get("downsample_ratio") != 0.5 or "min_num_patches" not in arguments:
        return None
    image = source.token("img_context_token_id", text=str(config.get("img_context_token", "<image>")))
    start = source.token(text=str(config.get("img_start_token", "<img>")))
    end = source.token(text=str(config.get("img_end_token", "</img>")))
    patch = source.number(config, "patch_size", 16)
    least, most = (source.number(arguments, name) for name in ("min_num_patches", "max_num_patches"))
    return NemotronLayout(
        family,
        image,
        start,
        end,
        PatchBudget(patch, least, most),
        source.options.max_model_len,
        NemotronVideo.read(source, patch, (start, image, end)),
        source.files.tokenizer,
    )

"""Phi-3-vision and Phi-3.5-vision: an HD canvas of 336-pixel tiles; the placeholder is text.

`<|image_1|>`, `<|image_2|>`, ... are no tokens. vLLM decodes the prompt, drops the space after each special
token, splits at the placeholders and tokenizes every piece alone, with its start token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from processors.families.source import Source
from processors.layout import (
    Expansion,
    FamilyLayout,
    LayoutRefused,
    PlacedItem,
    Refusal,
    Replacement,
    Shape,
    run_of,
)
from sightline_types import DegradeReason, ImageSize, Modality, VideoShape

__all__ = ["Phi3VLayout", "layout"]

_ARCHITECTURES = {"Phi3VForCausalLM": "phi3_v"}
#: vLLM's own constant; the files name it nowhere.
_IMAGE_ID = 32044
_TILE = 336
_PLACEHOLDER = re.compile(r"<\|image_\d+\|>")


@dataclass(frozen=True)
class Phi3VLayout(FamilyLayout):
    """max_tiles: `num_crops`. tile_tokens: of one tile, a square number."""

    family: str
    max_tiles: int
    tile_tokens: int
    tokenizer: PreTrainedTokenizerBase | None = field(repr=False, compare=False)

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {}

    @property
    def placeholder_texts(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: "<|image_{number}|>"}

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset({Modality.IMAGE})

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        return {"id": _IMAGE_ID, "tiles": self.max_tiles, "tokens": self.tile_tokens}

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        rows, columns = self.tiles(shape)
        newlines = (rows + 1) * math.isqrt(self.tile_tokens)
        return run_of(_IMAGE_ID, (rows * columns + 1) * self.tile_tokens + 1 + newlines)

    def tiles(self, size: ImageSize) -> tuple[int, int]:
        """(rows, columns) of the canvas.

        Raises:
            LayoutRefused: the shorter side shrinks to nothing.
        """
        wide, narrow = max(size.width, size.height), min(size.width, size.height)
        ratio = wide / narrow
        columns = 1
        while columns * math.ceil(columns / ratio) <= self.max_tiles:
            columns += 1
        columns -= 1
        height = int(_TILE * columns / ratio)
        if height < 1:
            raise LayoutRefused(DegradeReason.SIZE_REFUSED, f"{size} shrinks to nothing on its canvas")
        rows = math.ceil(height / _TILE)
        return (rows, columns) if size.width >= size.height else (columns, rows)

    def expand(self, token_ids: Sequence[int], replacements: Sequence[Replacement | Refusal]) -> Expansion:
        """As `FamilyLayout.expand`; the text after a refused item is not foreseen."""
        pieces = self._pieces(token_ids)
        if len(pieces) != len(replacements) + 1:
            raise ValueError(f"{len(pieces) - 1} placeholders for {len(replacements)} media items")
        ids: list[int] = list(pieces[0])
        placed: list[PlacedItem] = []
        for index, (item, text) in enumerate(zip(replacements, pieces[1:], strict=True)):
            if isinstance(item, Refusal):
                return Expansion(np.array(ids, dtype=np.int64), tuple(placed), len(ids))
            placed.append(PlacedItem(index, len(ids), len(item.ids)))
            ids += [*item.ids.tolist(), *text]
        return Expansion(np.array(ids, dtype=np.int64), tuple(placed), len(ids))

    def _pieces(self, token_ids: Sequence[int]) -> list[list[int]]:
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise ValueError("the prompt is tokenized anew, and the model's files have no tokenizer")
        ids = list(token_ids)
        if ids and ids[0] == tokenizer.bos_token_id:
            ids = ids[1:]
        text = str(tokenizer.decode(ids, skip_special_tokens=False))
        special = "|".join(re.escape(str(token)) for token in tokenizer.all_special_tokens)
        text = re.sub(rf"({special}) ", r"\1", text) if special else text
        return [list(tokenizer(piece).input_ids) for piece in _PLACEHOLDER.split(text)]


def layout(source: Source) -> Phi3VLayout | None:
    kwargs = source.kwargs(Modality.IMAGE)
    if (
        source.named(_ARCHITECTURES) is None
        or source.options.engine == "sglang"
        or source.has_nested_kwargs
        or kwargs.keys() - {"num_crops"}
    ):
        return None
    tiles = source.number({**source.settings, **kwargs}, "num_crops")
    tokens = source.number(source.settings, "num_img_tokens", 144)
    return Phi3VLayout("phi3_v", tiles, tokens, source.files.tokenizer)

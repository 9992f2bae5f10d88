"""InternVL 2, 2.5, 3: tiles of the canvas whose shape is nearest, and the whole picture once more.

In OpenGVLab's format (`internvl_chat`) the placeholder is the text `<image>`; in transformers' (`internvl`)
it is the token that the encoder fills.
Source: `calculate_internvl_targets` of vLLM 0.32, `get_optimal_tiled_canvas` of transformers' GotOcr2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from processors.families.source import Source
from processors.families.text_placeholders import expand_text
from processors.layout import Expansion, FamilyLayout, Refusal, Replacement, Shape, embed_runs
from sightline_types import ImageSize, Modality, VideoShape

__all__ = ["InternVLLayout", "TileGrid", "layout"]

_ARCHITECTURES = {
    "InternVLChatModel": "internvl_chat",
    "InternVLForConditionalGeneration": "internvl",
}
_TEXT = "<image>"
# vLLM (0.32) hands those of OpenGVLab's format to transformers' video processor, too, which refuses them.
_TILING_KWARGS: dict[str, set[str]] = {"internvl_chat": set(), "internvl": {"min_patches", "max_patches"}}


@dataclass(frozen=True, slots=True)
class TileGrid:
    """width, height: of a tile in pixels. least, most: tiles of a canvas. thumbnail: the picture as a tile
    of its own, where its canvas has several."""

    width: int
    height: int
    least: int
    most: int
    thumbnail: bool

    def num_tiles(self, size: ImageSize) -> int:
        """Of the canvas and the thumbnail.

        Canvases of as many tiles may be tried in any order: which of them wins does not change the count.
        """
        aspect, area = size.width / size.height, size.width * size.height
        best, least_off = 1, float("inf")
        for columns, rows in self._canvases():
            off, tiles = abs(aspect - columns / rows), columns * rows
            if off < least_off:
                best, least_off = tiles, off
            elif off == least_off and area > 0.5 * self.width * self.height * tiles:
                best = tiles
        return best + 1 if self.thumbnail and best > 1 else best

    def _canvases(self) -> list[tuple[int, int]]:
        sides = range(1, self.most + 1)
        fitting = [(a, b) for a in sides for b in sides if self.least <= a * b <= self.most]
        return sorted(fitting, key=lambda canvas: canvas[0] * canvas[1])


@dataclass(frozen=True)
class InternVLLayout(FamilyLayout):
    """tile_tokens: of one tile. tokenizer: where the placeholder is text."""

    family: str
    image_id: int
    start_id: int
    end_id: int
    tile_tokens: int
    grid: TileGrid
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, repr=False, compare=False)

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {} if self.family == "internvl_chat" else {Modality.IMAGE: self.image_id}

    @property
    def placeholder_texts(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: _TEXT} if self.family == "internvl_chat" else {}

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset({Modality.IMAGE})

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        grid = self.grid
        return {
            "ids": f"{self.image_id}/{self.start_id}/{self.end_id}",
            "tile": f"{grid.width}x{grid.height}/{self.tile_tokens}",
            "tiles": f"{grid.least}-{grid.most}",
            "thumbnail": grid.thumbnail,
        }

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        count = self.grid.num_tiles(shape) * self.tile_tokens
        ids = np.array([self.start_id, *[self.image_id] * count, self.end_id], dtype=np.int64)
        return Replacement(ids, embed_runs(ids, self.image_id))

    def expand(self, token_ids: Sequence[int], replacements: Sequence[Replacement | Refusal]) -> Expansion:
        if self.family != "internvl_chat":
            return super().expand(token_ids, replacements)
        return expand_text(self.tokenizer, token_ids, _TEXT, replacements, self.image_id)


def layout(source: Source) -> InternVLLayout | None:
    family = source.named(_ARCHITECTURES)
    if family is None or source.options.engine == "sglang":
        return None
    kwargs = source.kwargs(Modality.IMAGE)
    if source.has_nested_kwargs or kwargs.keys() - _TILING_KWARGS[family]:
        return None
    found = _of_model(source) if family == "internvl_chat" else _of_processor(source, kwargs)
    if found is None:
        return None
    grid, tile_tokens = found
    names = () if family == "internvl_chat" else ("image_token_id",)
    image = source.token(*names, text="<IMG_CONTEXT>")
    start, end = source.token(text="<img>"), source.token(text="</img>")
    return InternVLLayout(family, image, start, end, tile_tokens, grid, source.files.tokenizer)


def _of_model(source: Source) -> tuple[TileGrid, int]:
    """Tiles, and tokens of one, as config.json of OpenGVLab's format has them."""
    settings = source.config
    side, patch = source.number(source.vision, "image_size"), source.number(source.vision, "patch_size")
    least, most = (source.number(settings, f"{name}_dynamic_patch") for name in ("min", "max"))
    if not settings.get("dynamic_image_size", True):
        least = most = 1
    grid = TileGrid(side, side, least, most, bool(settings.get("use_thumbnail", False)))
    return grid, int((side // patch) ** 2 * source.ratio(source.config, "downsample_ratio", 0.5) ** 2)


def _of_processor(source: Source, kwargs: Mapping[str, Any]) -> tuple[TileGrid, int] | None:
    """As transformers' processor has them, which always cuts, whatever its file says; None where a tile's
    sides are not given."""
    settings = {**source.settings, **kwargs}
    size = settings.get("size")
    if not isinstance(size, Mapping) or not {"height", "width"} <= size.keys():
        return None
    if not settings.get("do_resize", True):
        return None
    least, most = source.number(settings, "min_patches", 1), source.number(settings, "max_patches", 12)
    grid = TileGrid(source.number(size, "width"), source.number(size, "height"), least, most, thumbnail=True)
    model = source.number(source.config, "image_seq_length", 256)
    return grid, source.number(settings, "image_seq_length", model)

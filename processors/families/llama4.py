"""Llama-4: a canvas of tiles with separators, then the whole picture once more as one tile.

The prompt carries `<|image|>`; config.json's image_token_index is `<|patch|>`, which the encoder fills.
Source: `Llama4Processor` and `get_best_fit` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from processors.families.source import Source
from processors.layout import FamilyLayout, Replacement, Shape, embed_runs
from sightline_types import ImageSize, Modality, VideoShape

__all__ = ["Llama4Layout", "Llama4Tokens", "canvases", "layout"]

_ARCHITECTURES = {"Llama4ForConditionalGeneration": "llama4"}


@dataclass(frozen=True, slots=True)
class Llama4Tokens:
    image: int
    patch: int
    start: int
    end: int
    between_columns: int
    after_row: int


@dataclass(frozen=True)
class Llama4Layout(FamilyLayout):
    """tile: pixels of a tile's side. tile_tokens: of one tile. max_tiles: of a canvas.

    to_largest: `resize_to_max_canvas`, take the largest canvas that the picture fits into.
    """

    family: str
    tokens: Llama4Tokens
    tile: int
    tile_tokens: int
    max_tiles: int
    to_largest: bool

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.tokens.image}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        tokens = self.tokens
        ids = (tokens.image, tokens.patch, tokens.start, tokens.end, tokens.between_columns, tokens.after_row)
        return {
            "ids": "/".join(map(str, ids)),
            "tile": f"{self.tile}x{self.tile_tokens}",
            "max": self.max_tiles,
            "largest": self.to_largest,
        }

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        rows, columns = self.tiles(shape)
        tokens, tile = self.tokens, [self.tokens.patch] * self.tile_tokens
        ids = [tokens.start]
        if rows * columns > 1:
            row = [*tile, *([tokens.between_columns, *tile] * (columns - 1)), tokens.after_row]
            ids += row * rows
        ids += [tokens.image, *tile, tokens.end]
        array = np.array(ids, dtype=np.int64)
        return Replacement(array, embed_runs(array, tokens.patch))

    def tiles(self, size: ImageSize) -> tuple[int, int]:
        """(rows, columns) of the canvas: the closest enlargement, else the closest reduction.

        The scales are float32, as torch divides an integer tensor, and so compare as equal or not.
        """
        grids = np.array(canvases(self.max_tiles), dtype=np.int64)
        heights = (grids[:, 0] * self.tile).astype(np.float32) / np.float32(size.height)
        widths = (grids[:, 1] * self.tile).astype(np.float32) / np.float32(size.width)
        scales = np.minimum(heights, widths)
        enlarging = scales[scales >= 1]
        chosen = scales.max() if not len(enlarging) or self.to_largest else enlarging.min()
        fitting = grids[scales == chosen]
        rows, columns = fitting[np.argmin(fitting[:, 0] * fitting[:, 1])].tolist()
        return rows, columns


def canvases(max_tiles: int) -> list[tuple[int, int]]:
    """Every (rows, columns) of at most `max_tiles` tiles, grouped by their ratio as it first appears."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(max_tiles, 0, -1):
        for rows in range(1, tiles + 1):
            if tiles % rows == 0:
                by_ratio.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    return [grid for group in by_ratio.values() for grid in group]


def layout(source: Source) -> Llama4Layout | None:
    if source.named(_ARCHITECTURES) is None or source.options.engine == "sglang":
        return None
    kwargs = source.kwargs(Modality.IMAGE)
    if source.has_nested_kwargs or kwargs.keys() - {"max_patches", "resize_to_max_canvas"}:
        return None
    settings = {**source.settings, **kwargs}
    vision = source.vision
    tile, patch = source.number(vision, "image_size", 336), source.number(vision, "patch_size", 14)
    ratio = source.ratio(vision, "pixel_shuffle_ratio", 0.5)
    size = settings.get("size")
    if isinstance(size, Mapping) and {size.get("height", tile), size.get("width", tile)} != {tile}:
        return None  # the processor cuts other tiles than the model takes
    tokens = Llama4Tokens(
        image=source.token(text="<|image|>"),
        patch=source.token("image_token_index", "image_token_id", text="<|patch|>"),
        start=source.token("boi_token_index", text="<|image_start|>"),
        end=source.token("eoi_token_index", text="<|image_end|>"),
        between_columns=source.token(text="<|tile_x_separator|>"),
        after_row=source.token(text="<|tile_y_separator|>"),
    )
    count = (tile // patch) ** 2 // round(1 / ratio**2)
    max_tiles = source.number(settings, "max_patches", 16)
    return Llama4Layout("llama4", tokens, tile, count, max_tiles, bool(settings.get("resize_to_max_canvas")))

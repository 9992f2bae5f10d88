"""LLaVA-NeXT: a base picture, and the tiles of the best of some canvases, one newline feature a row.

Source: `LlavaNextProcessingInfo` of vLLM 0.32, which agrees with transformers' processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from processors.families.llava import selected_features
from processors.families.source import Source, positive
from processors.layout import FamilyLayout, Replacement, Shape, run_of
from sightline_types import ImageSize, Modality, VideoShape

__all__ = ["LlavaNextLayout", "layout"]

_ARCHITECTURES = {"LlavaNextForConditionalGeneration": "llava_next"}


@dataclass(frozen=True)
class LlavaNextLayout(FamilyLayout):
    """canvases: (height, width) in pixels, in the order in which they are tried.

    tile, patch: pixels. base_tokens: of the picture as a whole.
    """

    family: str
    image_id: int
    canvases: tuple[tuple[int, int], ...]
    tile: int
    patch: int
    base_tokens: int

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.image_id}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        canvases = "/".join(f"{height}x{width}" for height, width in self.canvases)
        return {
            "id": self.image_id,
            "tile": self.tile,
            "patch": self.patch,
            "base": self.base_tokens,
            "canvases": canvases,
        }

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        canvas = self._canvas(shape)
        side = self.tile // self.patch
        height, width = side * (canvas[0] // self.tile), side * (canvas[1] // self.tile)
        height, width = unpadded(shape, height, width)
        return run_of(self.image_id, height * width + height + self.base_tokens)

    def _canvas(self, size: ImageSize) -> tuple[int, int]:
        """The canvas that keeps the most of the picture, and wastes least of itself."""
        best, best_fit, least_waste = self.canvases[0], -1, 0
        for height, width in self.canvases:
            scale = min(width / size.width, height / size.height)
            kept = int(size.width * scale) * int(size.height * scale)
            fit = min(kept, size.width * size.height)
            waste = height * width - fit
            if fit > best_fit or (fit == best_fit and waste < least_waste):
                best, best_fit, least_waste = (height, width), fit, waste
        return best


def unpadded(size: ImageSize, height: int, width: int) -> tuple[int, int]:
    """The feature rows and columns that are left when the canvas' padding is taken off.

    The seventh digit is the processor's: products that are whole numbers land just beside them.
    """
    if size.width / size.height > width / height:
        kept = int(round(size.height * (width / size.width), 7))
        return height - 2 * ((height - kept) // 2), width
    kept = int(round(size.width * (height / size.height), 7))
    return height, width - 2 * ((width - kept) // 2)


def layout(source: Source) -> LlavaNextLayout | None:
    if source.named(_ARCHITECTURES) is None or source.options.engine == "sglang":
        return None
    if source.options.processor_kwargs:
        return None
    tile, patch = (
        source.number(source.vision, "image_size", 336),
        source.number(source.vision, "patch_size", 14),
    )
    sizes = _canvases(source.config.get("image_grid_pinpoints"), tile)
    strategy = str(source.config.get("vision_feature_select_strategy", "default"))
    base = selected_features((tile // patch) ** 2 + 1, strategy)
    token = source.token("image_token_index", "image_token_id", text="<image>")
    if base is None or sizes is None or patch > tile or not _cuts_them(source, tile):
        return None
    return LlavaNextLayout("llava_next", token, sizes, tile, patch, base)


def _cuts_them(source: Source, tile: int) -> bool:
    """Whether the processor cuts pictures into the model's tiles, from the canvases that the model knows."""
    own, crop = source.settings.get("image_grid_pinpoints"), source.settings.get("crop_size", tile)
    sides = set(crop.values()) if isinstance(crop, Mapping) else {crop}
    return own in (None, source.config.get("image_grid_pinpoints")) and sides == {tile}


def _canvases(given: object, tile: int) -> tuple[tuple[int, int], ...] | None:
    """(height, width) pairs of at least a tile each; None where the files have none."""
    pairs = given if isinstance(given, list | tuple) else ()
    if not pairs or any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs):
        return None
    sizes = [(positive(height), positive(width)) for height, width in pairs]
    found = tuple((h, w) for h, w in sizes if h is not None and w is not None and min(h, w) >= tile)
    return found if len(found) == len(sizes) else None

"""GLM-4.1V, GLM-4.5V and GLM-4.6V pictures: one placeholder becomes a run of itself.

The arithmetic is that of Qwen3-VL's clips, for a clip of two frames.
Source: `smart_resize` of transformers' Glm4vImageProcessor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from processors.families.qwen3_vl import resized_frames
from processors.families.smart_resize import PatchGrid
from processors.families.source import Source
from processors.layout import FamilyLayout, LayoutRefused, Replacement, Shape, run_of
from sightline_types import DegradeReason, Modality, VideoShape

__all__ = ["Glm4vLayout", "layout"]

_ARCHITECTURES = {
    "Glm4vForConditionalGeneration": "glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe",
}
_FRAMES = 2
# Limits of the image processor's class where its settings are silent.
_SIZE = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}


@dataclass(frozen=True)
class Glm4vLayout(FamilyLayout):
    """grid: its limits are of two frames, though a picture is one."""

    family: str
    image_id: int
    grid: PatchGrid

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.image_id}

    @property
    def frames(self) -> Mapping[Modality, tuple[str, str]]:
        return {Modality.IMAGE: ("<|begin_of_image|>", "<|end_of_image|>")}

    @property
    def edges_are_areas(self) -> bool:
        return True

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        return {"id": self.image_id, **self.grid.parameters}

    def replacement(self, shape: Shape) -> Replacement:
        assert not isinstance(shape, VideoShape)
        try:
            height, width = resized_frames(VideoShape(shape, _FRAMES), self.grid)
        except LayoutRefused as error:
            raise LayoutRefused(DegradeReason.SIZE_REFUSED, error.detail) from error
        return run_of(self.image_id, (height // self.grid.factor) * (width // self.grid.factor))


def layout(source: Source) -> Glm4vLayout | None:
    family = source.named(_ARCHITECTURES)
    if family is None or source.options.engine == "sglang" or source.kwargs(Modality.IMAGE):
        return None
    grid = PatchGrid.read(source.settings, class_size=_SIZE, reads_flat_limits=False)
    if grid is None or source.settings.get("temporal_patch_size", _FRAMES) != _FRAMES:
        return None
    return Glm4vLayout(family, source.token("image_token_id", text="<|image|>"), grid)

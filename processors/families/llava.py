"""LLaVA-1.5: every picture is a run of as many placeholders as its vision tower has patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from processors.families.source import Source
from processors.layout import FamilyLayout, Replacement, Shape, run_of
from sightline_types import Modality

__all__ = ["LlavaLayout", "layout", "selected_features"]

_ARCHITECTURES = {"LlavaForConditionalGeneration": "llava"}
#: Feature tokens of a tower beside its patches.
_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}


@dataclass(frozen=True)
class LlavaLayout(FamilyLayout):
    """count: tokens of any picture."""

    family: str
    image_id: int
    count: int

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.image_id}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        return {"id": self.image_id, "tokens": self.count}

    def replacement(self, shape: Shape) -> Replacement:
        return run_of(self.image_id, self.count)


def selected_features(features: int, strategy: str) -> int | None:
    """What `vision_feature_select_strategy` leaves of a tower's features; None for one that is not known."""
    return {"default": features - 1, "full": features, "class": 1}.get(strategy)


def layout(source: Source) -> LlavaLayout | None:
    if source.named(_ARCHITECTURES) is None or source.options.engine == "sglang":
        return None
    tower = _CLASS_TOKENS.get(str(source.vision.get("model_type", "clip_vision_model")))
    if tower is None:
        return None
    side = source.number(source.vision, "image_size", 336) // source.number(source.vision, "patch_size", 14)
    if not _makes_squares(source.settings):
        return None
    strategy = str(source.config.get("vision_feature_select_strategy", "default"))
    count = selected_features(side * side + tower, strategy)
    token = source.token("image_token_index", "image_token_id", text="<image>")
    return None if not count else LlavaLayout("llava", token, count)


def _makes_squares(settings: Mapping[str, Any]) -> bool:
    """Whether every picture becomes one of the tower's shape, by cropping or by squeezing."""
    size = settings.get("size")
    squeezes = isinstance(size, Mapping) and {"height", "width"} <= size.keys()
    return bool(settings.get("do_resize", True) and (squeezes or settings.get("do_center_crop", True)))

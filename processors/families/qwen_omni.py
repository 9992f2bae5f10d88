"""Qwen2.5-Omni and Qwen3-Omni pictures: the arithmetic of Qwen2.5-VL, under the thinker's ids.

Their clips may carry sound into the prompt, and are not laid out.
"""

from __future__ import annotations

from collections.abc import Mapping

from processors.families.qwen2_vl import Qwen2VLLayout
from processors.families.smart_resize import PatchGrid
from processors.families.source import Source
from sightline_types import Modality

__all__ = ["layout"]

_ARCHITECTURES = {
    "Qwen2_5OmniModel": "qwen2_5_omni",
    "Qwen2_5OmniForConditionalGeneration": "qwen2_5_omni",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_omni_moe",
}
_PLACEHOLDERS = {"qwen2_5_omni": "<|IMAGE|>", "qwen3_omni_moe": "<|image_pad|>"}


def layout(source: Source) -> Qwen2VLLayout | None:
    family = source.named(_ARCHITECTURES)
    if family is None or source.options.engine == "sglang":
        return None
    grid = PatchGrid.read(source.settings, source.kwargs(Modality.IMAGE))
    thinker = source.config.get("thinker_config")
    within = thinker if isinstance(thinker, Mapping) else source.config
    text = _PLACEHOLDERS[family]
    token = source.token("image_token_id", "image_token_index", text=text, within=within)
    return None if grid is None else Qwen2VLLayout(family, token, grid)

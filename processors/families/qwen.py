"""What the layouts of all Qwen-VL families share: which token stands for which item."""

from __future__ import annotations

from collections.abc import Mapping

from processors.layout import FamilyLayout
from sightline_types import Modality

__all__ = ["QwenLayout"]


class QwenLayout(FamilyLayout):
    """video_id: None where config.json names none. video: None where clips are not laid out exactly."""

    image_id: int
    video_id: int | None
    video: object | None

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        tokens = {Modality.IMAGE: self.image_id}
        return tokens if self.video_id is None else {**tokens, Modality.VIDEO: self.video_id}

    @property
    def frames(self) -> Mapping[Modality, tuple[str, str]]:
        return dict.fromkeys(Modality, ("<|vision_start|>", "<|vision_end|>"))

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset({Modality.IMAGE, Modality.VIDEO} if self.video else {Modality.IMAGE})

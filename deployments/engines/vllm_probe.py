"""What vLLM's installed processor makes of media: ids and placeholder ranges, without weights or cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from deployments.engines.vllm_media import VISION_CHUNK
from processors import PlacedItem, Shape
from sightline_types import EmbedRun, ImageSize, Modality, VideoShape

__all__ = ["InstalledProcessor", "ProcessorRefused", "Rendered"]


#: What processors raise on media, or settings of their own, that they do not like.
_REFUSALS = (
    ValueError, ArithmeticError, RuntimeError, AssertionError, TypeError, LookupError, AttributeError,
)  # fmt: skip


class ProcessorRefused(Exception):
    """The installed processor raised on these media: such a request would fail."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the engine would compute on. placed: the items' ranges, by offset."""

    token_ids: tuple[int, ...]
    placed: tuple[PlacedItem, ...]


class InstalledProcessor:
    """vLLM's multimodal processor of one model.

    names: what vLLM calls each modality, where it is not by its own name (Kimi's `vision_chunk`).
    """

    def __init__(self, processor: Any, names: Mapping[Modality, str]) -> None:
        self._processor = processor
        self._names = names

    def takes(self, modality: Modality) -> bool:
        """Whether the model knows the modality and the engine's arguments allow it."""
        name = self._names.get(modality, str(modality))
        return bool(self._processor.info.allowed_mm_limits.get(name, 0))

    def render(self, token_ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered:
        """Lay black pictures and clips of these shapes out.

        Raises:
            ProcessorRefused: the processor raised.
        """
        from vllm.multimodal.processing import ProcessorInputs, TimingContext

        data: dict[str, list[Any]] = {}
        for shape in shapes:
            modality = Modality.VIDEO if isinstance(shape, VideoShape) else Modality.IMAGE
            name = self._names.get(modality, str(modality))
            data.setdefault(name, []).append(_black(shape, name))
        uuids = {name: [f"probe-{name}-{i}" for i in range(len(items))] for name, items in data.items()}
        try:
            items = self._processor.info.parse_mm_data(data)
            inputs = ProcessorInputs(list(token_ids), items, uuids)
            result = self._processor.apply(inputs, TimingContext(enabled=False))
        except _REFUSALS as error:
            raise ProcessorRefused(f"{type(error).__name__}: {error}") from error
        ranges = [found for ranges in result["mm_placeholders"].values() for found in ranges]
        ranges.sort(key=lambda found: found.offset)
        placed = (PlacedItem(i, f.offset, f.length, _runs(f.is_embed)) for i, f in enumerate(ranges))
        return Rendered(tuple(result["prompt_token_ids"]), tuple(placed))


def _black(shape: Shape, name: str) -> Any:
    if isinstance(shape, ImageSize):
        picture = Image.new("RGB", (shape.width, shape.height))
        return {"type": "image", "image": picture, "uuid": None} if name == VISION_CHUNK else picture
    frames = np.zeros((shape.num_frames, shape.size.height, shape.size.width, 3), dtype=np.uint8)
    fps = shape.source_fps or 1.0
    total = shape.total_frames or shape.num_frames
    metadata = {
        "fps": fps,
        "duration": total / fps,
        "total_num_frames": total,
        "frames_indices": list(shape.frame_indices),
        "video_backend": "opencv",
        "do_sample_frames": False,
    }
    return frames, metadata


def _runs(mask: Any) -> tuple[EmbedRun, ...]:
    """As `Replacement.embeds`; () where the mask covers all."""
    if mask is None:
        return ()
    filled = np.asarray(mask, dtype=np.int8)
    edges = np.diff(filled, prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    return tuple(EmbedRun(start, end - start) for start, end in zip(starts, ends, strict=True))

"""A request as vLLM's `prompt` dictionary: token ids, decoded media and their identities, by modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deployments.media import DecodedMedia
from deployments.protocol import EngineMedia, EngineRequest
from processors import DecodedVideo
from sightline_types import Modality

__all__ = ["VISION_CHUNK", "clip_data", "engine_prompt", "multi_modal_data"]

#: vLLM's modality of models whose pictures and clips share one placeholder; its items say what they are.
VISION_CHUNK = "vision_chunk"


def engine_prompt(
    request: EngineRequest, media: Sequence[DecodedMedia], names: Mapping[Modality, str]
) -> dict[str, Any]:
    """media: None for an item that is given by its identity alone. names: `FamilyLayout.engine_names`."""
    prompt: dict[str, Any] = {"prompt_token_ids": list(request.token_ids)}
    if media:
        uuids: dict[str, list[str]] = {}
        for item in request.media:
            uuids.setdefault(_name(item, names), []).append(item.media_id.engine_uuid)
        prompt["multi_modal_data"] = multi_modal_data(request.media, media, names)
        prompt["multi_modal_uuids"] = uuids
    if request.mm_processor_kwargs:
        prompt["mm_processor_kwargs"] = request.mm_processor_kwargs
    if request.cache_salt:
        prompt["cache_salt"] = request.cache_salt
    return prompt


def multi_modal_data(
    described: Sequence[EngineMedia], media: Sequence[DecodedMedia], names: Mapping[Modality, str]
) -> dict[str, list[Any]]:
    """Decoded items by vLLM's name of their modality, each in prompt order, as the engine gets them."""
    data: dict[str, list[Any]] = {}
    for item, decoded in zip(described, media, strict=True):
        name = _name(item, names)
        value: Any = clip_data(decoded) if isinstance(decoded, DecodedVideo) else decoded
        if name == VISION_CHUNK and value is not None:
            value = {"type": "image", "image": value, "uuid": item.media_id.engine_uuid}
        data.setdefault(name, []).append(value)
    return data


def _name(item: EngineMedia, names: Mapping[Modality, str]) -> str:
    return names.get(item.modality, item.modality.value)


def clip_data(video: DecodedVideo) -> tuple[Any, dict[str, Any]]:
    """Frames and metadata as vLLM's own loaders return them.

    do_sample_frames: False, or the processor would sample the sampled frames again.
    """
    shape = video.shape
    rate = shape.source_fps or 0.0
    total = shape.total_frames or shape.num_frames
    metadata = {
        "total_num_frames": total,
        "fps": rate,
        "duration": total / rate if rate else 0.0,
        "video_backend": "pyav",
        "frames_indices": list(shape.frame_indices),
        "do_sample_frames": False,
    }
    return video.frames, metadata

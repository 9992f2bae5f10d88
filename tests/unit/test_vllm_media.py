"""What vLLM is given of a request, made without vLLM."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from test_more_families import kimi

from deployments.engines.vllm_media import engine_prompt
from deployments.protocol import EngineMedia, EngineRequest, Sampling
from processors import DecodedVideo
from sightline_types import DecisionId, ImageSize, MediaId, Modality, VideoShape

RED, BLUE = (Image.new("RGB", (4, 4), color) for color in ("red", "blue"))
CHUNKS = kimi("kimi_k25").engine_names


def described(number: int, modality: Modality = Modality.IMAGE) -> EngineMedia:
    return EngineMedia(modality, MediaId(number), "pixels", 0, 0)


def request(*media: EngineMedia, **more: Any) -> EngineRequest:
    return EngineRequest(DecisionId("d"), (5, 6, 7), Sampling(max_tokens=1), media, **more)


def chunk(picture: Image.Image, number: int) -> dict[str, Any]:
    return {"type": "image", "image": picture, "uuid": MediaId(number).engine_uuid}


def test_pictures_go_under_their_modality_with_their_identities_in_order() -> None:
    prompt = engine_prompt(request(described(1), described(2)), [RED, BLUE], {})
    assert prompt["multi_modal_data"] == {"image": [RED, BLUE]}
    assert prompt["multi_modal_uuids"] == {"image": [MediaId(1).engine_uuid, MediaId(2).engine_uuid]}


def test_pictures_for_kimi_k25_are_wrapped_and_named_vision_chunks() -> None:
    prompt = engine_prompt(request(described(1), described(2)), [RED, BLUE], CHUNKS)
    assert prompt["multi_modal_data"] == {"vision_chunk": [chunk(RED, 1), chunk(BLUE, 2)]}
    assert prompt["multi_modal_uuids"] == {"vision_chunk": [MediaId(n).engine_uuid for n in (1, 2)]}


def test_a_held_picture_for_kimi_k25_is_given_by_its_identity_alone() -> None:
    prompt = engine_prompt(request(described(1), described(2)), [None, BLUE], CHUNKS)
    assert prompt["multi_modal_data"] == {"vision_chunk": [None, chunk(BLUE, 2)]}
    assert prompt["multi_modal_uuids"]["vision_chunk"][0] == MediaId(1).engine_uuid


def test_pictures_and_clips_are_kept_apart_and_clips_bring_their_metadata() -> None:
    shape = VideoShape(ImageSize(4, 4), 2, source_fps=4.0, total_frames=8, frame_indices=(0, 7))
    clip = DecodedVideo(np.zeros((2, 4, 4, 3), np.uint8), shape)
    media = (described(1, Modality.VIDEO), described(2))
    data = engine_prompt(request(*media), [clip, RED], {})["multi_modal_data"]
    ((frames, metadata),) = data["video"]
    assert frames is clip.frames
    assert (metadata["duration"], metadata["frames_indices"]) == (2.0, [0, 7])
    assert data["image"] == [RED]


def test_text_has_no_media_and_keeps_its_salt() -> None:
    prompt = engine_prompt(request(cache_salt="s"), [], {})
    assert prompt == {"prompt_token_ids": [5, 6, 7], "cache_salt": "s"}

"""What a replica does with a request's media before its engine sees them."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from clips import clip
from PIL import Image
from tiny_files import tiny_folder

from deployments.config import EngineConfig
from deployments.media import MediaDecoder, OddPictures, are_as_promised
from deployments.transport import pack
from processors import DecodedVideo, RequestError, Sampling, VideoConfig
from sightline_types import ImageSize, MediaId, MediaItem, MediaSource, Modality, VideoShape

CLIP = clip(40)
FRAMES = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
SHAPE = VideoShape(ImageSize(6, 4), 2, 25.0, (0, 9), 10)


@pytest_asyncio.fixture
async def decoder() -> AsyncIterator[MediaDecoder]:
    made = MediaDecoder(EngineConfig("model", enable_multimodal=True), Sampling("qwen3_vl", 32))
    yield made
    await made.aclose()


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (5, 3), "red").save(buffer, "PNG")
    return buffer.getvalue()


def item(modality: Modality, source: MediaSource, **more: Any) -> MediaItem:
    return MediaItem(modality, MediaId(1), source, **more)


async def test_pictures_clips_and_files_come_out_in_order(decoder: MediaDecoder) -> None:
    items = [
        item(Modality.VIDEO, MediaSource(frames=FRAMES), video=SHAPE),
        item(Modality.IMAGE, MediaSource(data=png())),
        item(Modality.VIDEO, MediaSource(data=CLIP)),
    ]
    media, payload = pack(items, [item.source.data for item in items])
    given, picture, decoded = await decoder.decode(media, payload)
    assert isinstance(given, DecodedVideo) and given.shape == SHAPE
    assert np.array_equal(given.frames, FRAMES) and given.frames.flags.writeable
    assert isinstance(picture, Image.Image) and picture.size == (5, 3)
    # Two frames a second of 4 seconds, as vLLM's own loader for Qwen3-VL takes them.
    assert isinstance(decoded, DecodedVideo)
    assert decoded.shape.frame_indices == (0, 6, 11, 17, 22, 28, 33, 39)


async def test_a_clip_that_no_decoder_reads_is_a_refusal_that_names_it(decoder: MediaDecoder) -> None:
    broken = item(Modality.VIDEO, MediaSource(data=CLIP.replace(b"avc1", b"zzzz")))
    media, payload = pack([broken], [broken.source.data])
    with pytest.raises(RequestError, match=r"container mov.*codec 'zzzz'") as caught:
        await decoder.decode(media, payload)
    assert caught.value.status == 415


async def test_a_replica_decodes_no_video_where_they_are_off() -> None:
    decoder = MediaDecoder(EngineConfig("model", video=VideoConfig(decode="off")), Sampling())
    media, payload = pack([item(Modality.VIDEO, MediaSource(data=CLIP))], [CLIP])
    with pytest.raises(RequestError, match=r"video\.decode"):
        await decoder.decode(media, payload)
    await decoder.aclose()


async def test_the_rule_is_that_of_the_models_loader(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "qwen3_vl")
    (folder / "video_preprocessor_config.json").write_text(
        '{"video_processor_type": "Qwen3VLVideoProcessor"}'
    )
    decoder = await MediaDecoder.for_model(EngineConfig(str(folder), enable_multimodal=True))
    assert decoder.sampling == Sampling("qwen3_vl", 32)
    await decoder.aclose()


async def test_a_picture_that_is_not_as_its_header_said_is_told(decoder: MediaDecoder) -> None:
    items = [item(Modality.IMAGE, MediaSource(data=png()), size=size) for size in (ImageSize(5, 3), None)]
    media, payload = pack(items, [item.source.data for item in items])
    decoded = await decoder.decode(media, payload)
    assert are_as_promised(media, decoded)
    turned = [replace(one, size=ImageSize(3, 5)) for one in media]
    assert not are_as_promised(turned, decoded)
    assert are_as_promised(turned, [None, None])  # held by the engine


async def test_an_odd_picture_stays_odd_when_it_comes_by_its_identity_alone(decoder: MediaDecoder) -> None:
    size = ImageSize(3, 5)
    media, payload = pack([item(Modality.IMAGE, MediaSource(data=png()), size=size)], [png()])
    other = [replace(media[0], media_id=MediaId(77))]
    odd = OddPictures()
    assert not odd.are_among(media, [None])
    assert odd.are_among(media, await decoder.decode(media, payload))
    assert odd.are_among(media, [None])
    assert not odd.are_among(other, [None])

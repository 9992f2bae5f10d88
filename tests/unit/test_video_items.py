"""Videos of a chat request: decoded here, or left to the replica by name."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from clips import clip, remuxed
from hypothesis import given, settings
from hypothesis import strategies as st
from origin_server import Answer, Origin, origin
from picture_files import encoded, picture
from tiny_files import IMAGE_PAD, TEMPLATE, VIDEO_PAD, tiny_folder

from processors import (
    DecodedVideo,
    Fetcher,
    IdentityKey,
    MediaConfig,
    ModelFiles,
    PromptBuilder,
    RequestError,
    VideoConfig,
    identity_of_clip,
)
from sightline_types import DegradeReason, ImageSize, MediaItem, Modality, PreparedPrompt, VideoShape

#: 12 frames of 112x84: 6 groups of 4 x 3 tokens for Qwen2.5-VL.
CLIP = clip(12, 112, 84)
OTHER = clip(12, 112, 84, seed=1)
PICTURE = encoded(picture(width=112, height=112), "PNG")
GROUPS, PER_GROUP = 6, 12

IMAGE_ONLY = "{%- if part.type == 'image' %}"
WITH_VIDEO = (
    "{%- if part.type == 'video' %}\n"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}\n"
    "{%- elif part.type == 'image' %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert IMAGE_ONLY in TEMPLATE
    template = TEMPLATE.replace(IMAGE_ONLY, WITH_VIDEO)
    return tiny_folder(tmp_path_factory.mktemp("model"), "qwen2_5_vl", template=template)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as running:
        running.answers |= {"/clip": Answer(CLIP), "/text": Answer(b"not a video at all " * 30)}
        yield running


Builder = Callable[..., PromptBuilder]


@pytest_asyncio.fixture
async def builder(folder: Path) -> AsyncIterator[Builder]:
    made: list[PromptBuilder] = []

    def make(decode: str = "ingress", model: Path = folder, media: Any = None, **video: Any) -> PromptBuilder:
        settings = MediaConfig(allow_private_addresses=True, **(media or {}))
        prompts = PromptBuilder(
            ModelFiles.load(model),
            settings,
            enable_multimodal=True,
            fetcher=Fetcher(settings),
            clock=lambda: 0.0,
            video=VideoConfig(decode=decode, **video),
        )
        made.append(prompts)
        return prompts

    yield make
    for prompts in made:
        await prompts.aclose()


def data_url(data: bytes, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def video(data: bytes | str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data if isinstance(data, str) else data_url(data)}}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data, "image/png")}}


def ask(*parts: dict[str, Any] | str) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


async def the_item(work: Awaitable[PreparedPrompt]) -> MediaItem:
    (item,) = (await work).media
    return item


async def refusal(work: Awaitable[object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await work
    return caught.value


# Decoded in the ingress


async def test_a_decoded_clip_is_exact(builder: Builder) -> None:
    prompt = await builder().prepare(ask("look: ", video(CLIP), " what is it?"))
    assert prompt.is_exact and prompt.reasons == ()
    (item,), (span,) = prompt.media, prompt.view.spans
    assert item.modality is Modality.VIDEO and item.size == ImageSize(112, 84)
    assert item.video == VideoShape(ImageSize(112, 84), 12, 10.0, tuple(range(12)), 12)
    assert span.length == item.num_tokens == GROUPS * PER_GROUP
    assert span.media_id == item.media_id
    assert prompt.token_ids.count(VIDEO_PAD) == 1
    assert int(np.sum(prompt.view.token_ids == VIDEO_PAD)) == GROUPS * PER_GROUP


async def test_the_engine_is_given_the_frames_that_were_named(builder: Builder) -> None:
    item = await the_item(builder(num_frames=4).prepare(ask(video(CLIP))))
    assert item.source.frames is not None and item.source.data is None and item.source.url is None
    assert item.source.frames.shape == (4, 84, 112, 3)
    assert item.video is not None and item.video.frame_indices == (0, 4, 7, 11)
    assert item.media_id == identity_of_clip(DecodedVideo(item.source.frames, item.video))


async def test_num_frames_is_a_maximum(builder: Builder) -> None:
    more = await the_item(builder(num_frames=32).prepare(ask(video(CLIP))))
    assert more.video is not None and more.video.num_frames == 12


async def test_a_clip_by_http_is_the_clip_by_data_url(builder: Builder, server: Origin) -> None:
    prompts = builder()
    by_url = await the_item(prompts.prepare(ask(video(server.url("/clip")))))
    by_data = await the_item(prompts.prepare(ask(video(CLIP))))
    assert by_url.media_id == by_data.media_id


@pytest.mark.parametrize("container", ["matroska", "mov", "mpegts"])
async def test_one_clip_in_two_containers_is_one_identity(builder: Builder, container: str) -> None:
    prompts = builder()
    one = await the_item(prompts.prepare(ask(video(CLIP))))
    two = await the_item(prompts.prepare(ask(video(remuxed(CLIP, container)))))
    assert one.media_id == two.media_id


async def test_another_clip_is_another_identity(builder: Builder) -> None:
    prompts = builder()
    one, two = [await the_item(prompts.prepare(ask(video(data)))) for data in (CLIP, OTHER)]
    assert one.media_id != two.media_id


async def test_pictures_and_adjacent_clips_keep_their_order_and_places(builder: Builder) -> None:
    prompt = await builder().prepare(ask(image(PICTURE), video(CLIP), video(OTHER), "and", image(PICTURE)))
    assert prompt.is_exact
    assert [item.modality.value for item in prompt.media] == ["image", "video", "video", "image"]
    lengths = [span.length for span in prompt.view.spans]
    assert lengths == [16, GROUPS * PER_GROUP, GROUPS * PER_GROUP, 16]
    for span, token in zip(prompt.view.spans, (IMAGE_PAD, VIDEO_PAD, VIDEO_PAD, IMAGE_PAD), strict=True):
        assert set(prompt.view.token_ids[span.offset : span.end].tolist()) == {token}
    assert [span.media_id for span in prompt.view.spans] == [item.media_id for item in prompt.media]


async def test_a_template_that_writes_all_pictures_first_earns_nothing_for_what_it_moved(
    builder: Builder, tmp_path: Path
) -> None:
    """The engine takes the first picture for the first picture's placeholder, wherever that stands."""
    kinds = "(message.content | {}attr('type', 'equalto', 'image') | list)"
    sorted_parts = f"{{%- for part in {kinds.format('select')} + {kinds.format('reject')} %}}"
    template = TEMPLATE.replace(IMAGE_ONLY, WITH_VIDEO).replace(
        "{%- for part in message.content %}", sorted_parts
    )
    model = tiny_folder(tmp_path / "sorting", "qwen2_5_vl", template=template)
    moved = await builder(model=model).prepare(ask(video(CLIP), image(PICTURE)))
    assert moved.reasons == (DegradeReason.PLACEHOLDER_MISMATCH,) and not moved.view.spans
    kept = await builder(model=model).prepare(ask(image(PICTURE), video(CLIP)))
    assert kept.is_exact


async def test_what_cannot_be_decoded_goes_to_the_replica_by_name(builder: Builder, server: Origin) -> None:
    prompt = await builder().prepare(ask("before", image(PICTURE), video(server.url("/text"))))
    assert prompt.reasons == (DegradeReason.VIDEO_NOT_DECODED,)
    assert prompt.media[1].source.data == server.answers["/text"].body
    (span,) = prompt.view.spans
    assert span.end <= prompt.view.exact_until < len(prompt.view)  # the picture before keeps its credit


async def test_a_decoder_that_is_too_slow_leaves_the_clip_to_the_replica(builder: Builder) -> None:
    prompt = await builder(timeout_s=0.001).prepare(ask(video(CLIP)))
    assert prompt.reasons == (DegradeReason.VIDEO_NOT_DECODED,)


async def test_a_limit_is_refused_before_routing(builder: Builder) -> None:
    error = await refusal(builder(max_pixels=100).prepare(ask("x", video(CLIP))))
    assert (error.status, error.param) == (400, "messages[0].content[1].video_url")
    assert "video.max_pixels" in error.message


async def test_processor_arguments_leave_only_what_is_before_the_clip(builder: Builder) -> None:
    prompt = await builder().prepare(ask("before", video(CLIP)), mm_processor_kwargs={"fps": 4})
    assert prompt.reasons == (DegradeReason.MM_PROCESSOR_KWARGS,)
    assert prompt.view.spans == ()
    assert prompt.num_tokens == len(prompt.token_ids) - 1 + GROUPS * PER_GROUP


async def test_a_family_without_clips_is_routed_by_what_is_before(builder: Builder, tmp_path: Path) -> None:
    template = TEMPLATE.replace(IMAGE_ONLY, WITH_VIDEO)
    model = tiny_folder(tmp_path / "model", "a_family_of_tomorrow", template=template)
    prompt = await builder(model=model).prepare(ask("before", video(CLIP)))
    assert prompt.reasons == (DegradeReason.UNSUPPORTED_FAMILY,)
    assert prompt.media[0].source.frames is not None
    assert prompt.view.exact_until == prompt.token_ids.index(VIDEO_PAD)


# Left to the replica


@pytest.mark.parametrize("identity", ["auto", "bytes"])
async def test_a_clip_for_the_replica_is_routed_by_what_is_before_it(
    builder: Builder, server: Origin, identity: str
) -> None:
    prompts = builder("engine", media={"identity": identity})
    prompt = await prompts.prepare(ask("look", image(PICTURE), video(server.url("/clip")), "?"))
    assert prompt.reasons == (DegradeReason.VIDEO_DECODED_BY_ENGINE,)
    assert prompt.view.exact_until == prompt.view.token_ids.tolist().index(VIDEO_PAD)
    assert len(prompt.view.spans) == 1
    item = prompt.media[1]
    assert item.source.frames is None and item.video is None
    assert prompt.estimated_media_tokens > 1000  # it counts as load


async def test_a_url_is_not_fetched_to_be_routed(builder: Builder, server: Origin) -> None:
    item = await the_item(builder("engine").prepare(ask(video(server.url("/clip")))))
    assert item.source.url == server.url("/clip")
    assert not server.requests


async def test_a_files_picture_and_its_clip_are_two_identities(builder: Builder) -> None:
    prompts = builder("engine")
    gif = clip(3, codec="gif", container="gif", pixel_format="rgb8")
    picture_of, clip_of = (await prompts.prepare(ask(image(gif), video(gif)))).media
    assert picture_of.media_id != clip_of.media_id


async def test_a_data_url_for_the_replica_travels_as_its_file(builder: Builder) -> None:
    item = await the_item(builder("engine").prepare(ask(video(CLIP))))
    assert item.source.data == CLIP


# Off


async def test_videos_can_be_off(builder: Builder) -> None:
    error = await refusal(builder("off").prepare(ask(video(CLIP))))
    assert (error.status, error.code) == (400, "video_disabled")
    assert "video.decode" in error.message and error.param == "messages[0].content[0].video_url"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "video_url"}, "video_url"),
        ({"type": "video_url", "video_url": {"url": ""}}, "video_url"),
        ({"type": "video_url", "video_url": {"url": "rtsp://camera"}}, "video_url"),
        ({**video("https://host/a.mp4"), "uuid": "mine"}, "uuid"),
    ],
)
async def test_a_part_that_names_no_video_is_refused(
    builder: Builder, part: dict[str, Any], param: str
) -> None:
    error = await refusal(builder().prepare(ask(part)))
    assert (error.status, error.param) == (400, f"messages[0].content[0].{param}")


# Identity of what the engine is given


def of(frames: np.ndarray[Any, Any], **changes: Any) -> Any:
    count, height, width, _ = frames.shape
    shape = VideoShape(ImageSize(width, height), count, 10.0, tuple(range(count)), 9)
    return identity_of_clip(DecodedVideo(frames, dataclasses.replace(shape, **changes)))


@given(st.binary(min_size=24, max_size=24), st.binary(min_size=24, max_size=24))
@settings(deadline=None, max_examples=100)
def test_clips_are_one_where_their_frames_are(one: bytes, two: bytes) -> None:
    first, second = (np.frombuffer(data, dtype=np.uint8).reshape(2, 2, 2, 3) for data in (one, two))
    assert (of(first) == of(second)) is (one == two)


def test_whatever_the_engine_reads_of_a_clip_is_in_its_identity() -> None:
    frames = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    ids = {
        of(frames),
        of(frames[::-1]),
        of(frames.reshape(2, 1, 4, 3)),
        of(frames.reshape(1, 4, 2, 3)),
        of(frames, source_fps=20.0),
        of(frames, frame_indices=(0, 2)),
        of(frames, total_frames=10),
        identity_of_clip(
            DecodedVideo(frames, VideoShape(ImageSize(2, 2), 2, 10.0, (0, 1), 9)), IdentityKey("secret")
        ),
    }
    assert len(ids) == 8
    assert of(np.asfortranarray(frames)) == of(frames)

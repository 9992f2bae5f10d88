"""Clips on two real vLLM replicas behind Serve: decoded at the ingress, routed and served over HTTP."""

from __future__ import annotations

import pytest

from tests.engines import clips
from tests.engines import pictures as make
from tests.engines.clips import video_part
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, image_part, messages
from tests.engines.test_main_job import assert_speaks_for_itself, blocks_before_picture


def test_a_repeated_clip_reaches_the_replica_that_holds_it(service: Service, pictures: PictureServer) -> None:
    url = pictures.put("repeat.mp4", clips.clip(200))
    turns = messages(video_part(url), QUESTION, system="Unlike any other film. " * 30)
    first = service.ask_exact(turns)
    assert_speaks_for_itself(service, first)
    assert first.overlap == 0
    again = service.ask_exact(turns)
    assert again.worker == first.worker
    assert again.overlap >= 6
    assert again.media_overlap == again.media_blocks == first.media_blocks


def test_another_clip_holds_no_media_blocks(service: Service, pictures: PictureServer) -> None:
    service.ask_exact(messages(video_part(pictures.put("this.mp4", clips.clip(201))), QUESTION))
    other = service.ask_exact(messages(video_part(pictures.put("that.mp4", clips.clip(202))), QUESTION))
    assert_speaks_for_itself(service, other)
    assert other.media_overlap == 0
    assert other.overlap == blocks_before_picture(service, other)


@pytest.mark.parametrize(("codec", "other"), [("libx264", "matroska"), ("libvpx-vp9", "mp4")])
def test_one_clip_in_two_containers_is_one(
    service: Service, pictures: PictureServer, codec: str, other: str
) -> None:
    data = clips.clip(203, codec=codec, container="webm" if codec == "libvpx-vp9" else "mp4")
    first = service.ask_exact(messages(video_part(pictures.put(f"{codec}.one", data)), QUESTION))
    moved = pictures.put(f"{codec}.two", clips.remuxed(data, other))
    second = service.ask_exact(messages(video_part(moved), QUESTION))
    assert second.worker == first.worker
    assert second.media_overlap == second.media_blocks >= 3


def test_the_same_frames_at_another_rate_are_another_clip(service: Service, pictures: PictureServer) -> None:
    data = clips.clip(204)
    service.ask_exact(messages(video_part(pictures.put("quick.mp4", data)), QUESTION))
    slow = pictures.put("slow.mp4", clips.slowed(data, 2))
    second = service.ask_exact(messages(video_part(slow), QUESTION))
    assert second.media_overlap == 0


def test_a_clip_above_a_mebibyte_travels_beside_the_call(service: Service, pictures: PictureServer) -> None:
    """32 frames of 256x192 are 4.5 MiB: an object of their own."""
    url = pictures.put("large.mp4", clips.clip(205, size=(256, 192), num_frames=40))
    turns = messages(image_part(pictures.put("beside.png", make.png(206, (200, 200)))), video_part(url), "?")
    first = service.ask_exact(turns)
    again = service.ask_exact(turns)
    assert again.worker == first.worker
    assert again.media_overlap == again.media_blocks >= 10


def test_a_clip_in_a_data_url_is_the_clip_behind_an_address(
    service: Service, pictures: PictureServer
) -> None:
    data = clips.clip(207)
    first = service.ask_exact(messages(video_part(pictures.put("address.mp4", data)), QUESTION))
    second = service.ask_exact(messages(clips.inline(data), QUESTION))
    assert second.worker == first.worker
    assert second.media_overlap == second.media_blocks


def test_what_nobody_can_decode_is_refused_by_container_and_codec(
    service: Service, pictures: PictureServer
) -> None:
    broken = pictures.put("broken.mp4", clips.clip(208).replace(b"avc1", b"zzzz"))
    answer = service.ask(messages(video_part(broken), QUESTION), expect=415)
    assert "container mov" in answer.body["error"]["message"] and "'zzzz'" in answer.body["error"]["message"]
    text = clips.video_part(make.data_url(b"no video at all " * 50, "video/mp4"))
    assert service.ask(messages(text, QUESTION), expect=415).body["error"]["type"] == "invalid_request_error"

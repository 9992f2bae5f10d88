"""Client uuids over HTTP: two ingress replicas, two real engines."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.engines import pictures as make
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, messages


def named(uuid: str, url: str | None) -> list[dict[str, Any]]:
    image = None if url is None else {"url": url}
    return messages({"type": "image_url", "image_url": image, "uuid": uuid}, QUESTION)


def test_a_uuid_alone_goes_where_its_picture_is(service: Service) -> None:
    """Whichever ingress it comes to: one that never saw the picture asks one engine after the other."""
    url = make.data_url(make.png(701))
    first = service.ask(named("alone", url))
    for _ in range(6):
        service.wait_idle()
        again = service.ask(named("alone", None))
        assert again.worker == first.worker
        assert again.prompt_tokens == first.prompt_tokens
        assert again.cached == (first.prompt_tokens - 1) // 32 * 32
        decision = service.decision(again.decision_id)
        if not decision["degraded"]:
            service.assert_exact(again)


def test_a_uuid_with_its_picture_is_exact_again_and_again(service: Service) -> None:
    url = make.data_url(make.png(702))
    answers = [service.ask_exact(named("twice", url)) for _ in range(3)]
    assert answers[-1].media_overlap == answers[-1].media_blocks > 0
    assert len({answer.worker for answer in answers}) == 1


def test_a_uuid_that_no_engine_holds_is_a_404_that_says_what_to_do(service: Service) -> None:
    response = service.client.post("/v1/chat/completions", json=service.request(named("nowhere", None)))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "uuid_not_held")
    assert error["param"] == "messages[1].content[0].image_url"
    assert "send the picture" in error["message"]


def test_a_uuid_that_names_another_picture_later_is_not_held_against_the_engine(service: Service) -> None:
    first = service.ask(named("reused", make.data_url(make.png(703, (160, 160)))))
    second = service.ask(named("reused", make.data_url(make.png(704, (320, 256)))))
    assert second.status == 200
    third = service.ask_exact(named("fresh", make.data_url(make.png(705))))
    assert service.ask_exact(named("fresh", make.data_url(make.png(705)))).media_overlap == third.media_blocks
    assert first.status == 200


def test_a_known_uuid_needs_no_download(service: Service, pictures: PictureServer) -> None:
    """Its address may be gone meanwhile."""
    url = pictures.put("uuid-once.png", make.png(706))
    pictures.seen.clear()
    pictures.watches = True
    for _ in range(200):  # until both ingresses have seen it: Serve chooses one by chance
        service.ask(named("once", url))
        service.wait_idle()
        if len({owner for path, owner in pictures.seen if path == "/uuid-once.png"}) == 2:
            break
    else:
        pytest.fail(f"fetched by {pictures.seen}")
    pictures.watches = False
    first = service.ask(named("once", url))
    service.wait_idle()
    del pictures.files["/uuid-once.png"]
    again = service.ask(named("once", url))
    assert (again.worker, again.prompt_tokens) == (first.worker, first.prompt_tokens)


def lying_avif(seed: int) -> bytes:
    """320x512 by its header; its frames are those of a track and have half of that."""
    frames = [make.pixels(seed + number, (320, 256)) for number in range(2)]
    data = make.encode(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    size = b"ispe" + bytes(4) + struct.pack(">L", 320)
    return data.replace(size + struct.pack(">L", 256), size + struct.pack(">L", 512))


def test_a_picture_that_is_not_as_its_header_says_is_not_held_against_the_engine(service: Service) -> None:
    """One client's odd file must not end the credit of everybody's pictures."""
    answer = service.ask(named("lying", make.data_url(lying_avif(707), "image/avif")))
    assert service.decision(answer.decision_id)["num_tokens"] > answer.prompt_tokens
    service.wait_idle()
    assert [row["audit"]["length_differed"] for row in service.workers()] == [0, 0]

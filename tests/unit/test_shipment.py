"""A request's bytes travel once: what is read, decoded and sent, counted."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from origin_server import Answer, Origin, origin
from picture_files import encoded, picture
from tiny_files import tiny_folder

import processors.items
from deployments.openai_api import ChatRequest
from deployments.shipment import MediaShipper, Shipment
from processors import Fetcher, MediaConfig, ModelFiles, PromptBuilder, RequestError
from sightline_types import DegradeReason, PreparedPrompt

SMALL, OTHER = encoded(picture(width=112, height=112), "PNG"), encoded(picture(width=140, height=84), "PNG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"), "qwen2_vl")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as running:
        running.answers |= {"/a": Answer(SMALL), "/b": Answer(OTHER)}
        yield running


class Door:
    """The part of an ingress between a request and its engine."""

    def __init__(self, folder: Path, **given: Any) -> None:
        quiet = {"probe_budget_ms": 10000, "probe_timeout_ms": 10000}
        media = MediaConfig(**{"allow_private_addresses": True, **quiet, **given})
        self.fetcher = Fetcher(media)
        self.prompts = PromptBuilder(
            ModelFiles.load(folder), media, enable_multimodal=True, fetcher=self.fetcher
        )
        self.shipper = MediaShipper(self.prompts, self.fetcher, media.max_request_bytes)

    async def send(
        self, *parts: dict[str, Any], is_complete: bool = False
    ) -> tuple[PreparedPrompt, Shipment]:
        turns = [{"role": "user", "content": list(parts)}]
        prompt = await self.prompts.prepare(turns)
        request = ChatRequest.model_validate({"model": "m", "messages": turns})
        return prompt, await self.shipper.prepare(prompt, request, is_complete=is_complete)


@pytest_asyncio.fixture
async def door(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    made = Door(folder, **getattr(request, "param", {}))
    yield made
    await made.prompts.aclose()


def image(url: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": None if url is None else {"url": url}, **more}


def data_url(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize("door", [{"identity": mode} for mode in ("url", "bytes", "content")], indirect=True)
async def test_a_file_is_downloaded_once_however_often_it_is_named(door: Door, server: Origin) -> None:
    url = server.url("/a")
    for _ in range(3):
        _, shipment = await door.send(image(url), image(url))
        assert shipment.is_as_foreseen
    assert door.fetcher.counts.downloads == 1
    assert sum("range" not in headers for _, headers in server.requests) == 1


@pytest.mark.parametrize("door", [{"identity": "content"}], indirect=True)
async def test_a_picture_named_by_its_content_is_decoded_once_and_travels_as_pixels(
    door: Door, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    decode = processors.items.decode_image

    def counting(data: bytes, *, max_pixels: int) -> Any:
        decoded.append(len(data))
        return decode(data, max_pixels=max_pixels)

    monkeypatch.setattr("processors.items.decode_image", counting)
    _, first = await door.send(image(server.url("/a")))
    assert [item.form for item in first.media] == ["pixels"]
    assert len(decoded) == 1
    # Known by now: the file goes to the engine, which decodes it, and nobody else does.
    _, second = await door.send(image(server.url("/a")))
    assert [item.form for item in second.media] == ["file"]
    assert (len(decoded), second.media[0].media_id) == (1, first.media[0].media_id)


@pytest.mark.parametrize("door", [{"identity": "url"}, {"identity": "bytes"}], indirect=True)
async def test_nothing_is_decoded_for_a_name_or_a_size(
    door: Door, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr("processors.items.decode_image", never)
    prompt, _ = await door.send(image(server.url("/a")), image(data_url(OTHER)))
    assert prompt.is_exact


@pytest.mark.parametrize("door", [{"identity": "url", "probe_budget_ms": 30}], indirect=True)
async def test_an_origin_that_is_too_slow_for_a_size_leaves_credit_for_what_comes_before(
    door: Door, server: Origin
) -> None:
    server.answers["/slow"] = Answer(OTHER, stall_s=0.3)
    await door.fetcher.probe_size(server.url("/a"), 10_000)
    prompt, _ = await door.send(image(server.url("/a")), image(server.url("/slow")))
    assert prompt.reasons == (DegradeReason.SIZE_UNKNOWN,)
    assert [span.media_id for span in prompt.view.spans] == [prompt.media[0].media_id]
    assert prompt.view.exact_until >= prompt.view.spans[0].end
    assert prompt.estimated_media_tokens > 0


@pytest.mark.parametrize("door", [{"identity": "url", "probe_budget_ms": 0}], indirect=True)
async def test_the_file_makes_exact_what_its_address_could_not(door: Door, server: Origin) -> None:
    """It is read before the decision in any case, so the decision knows what it says."""
    parts = image(server.url("/a")), {"type": "text", "text": "and"}, image(server.url("/b"))
    before, first = await door.send(*parts)
    foreseen, second = await door.send(*parts)
    assert not before.is_exact and first.prompt.is_exact and first.is_as_foreseen
    assert foreseen.is_exact and second.prompt is foreseen
    assert first.prompt.view.token_ids.tolist() == foreseen.view.token_ids.tolist()
    assert first.prompt.view.spans == foreseen.view.spans
    assert first.prompt.first_turn_tokens == foreseen.first_turn_tokens


@pytest.mark.parametrize(
    "door", [{"identity": "url", "probe_budget_ms": MediaConfig().probe_budget_ms}], indirect=True
)
async def test_by_default_a_new_address_is_asked_once(door: Door, server: Origin) -> None:
    _, shipment = await door.send(image(server.url("/a")))
    assert shipment.prompt.is_exact
    assert len(server.requests) == 1


@pytest.mark.parametrize("door", [{"identity": "url", "cache_bytes": 0}], indirect=True)
async def test_a_file_that_changed_behind_its_address_is_laid_out_as_it_is(
    door: Door, server: Origin
) -> None:
    _, old = await door.send(image(server.url("/a")))
    server.answers["/a"] = Answer(OTHER)
    foreseen, new = await door.send(image(server.url("/a")))
    assert foreseen.media[0].media_id == old.media[0].media_id
    assert new.media[0].media_id == new.prompt.view.spans[0].media_id != old.media[0].media_id
    assert new.is_as_foreseen and len(new.prompt.view) != len(foreseen.view)


@pytest.mark.parametrize(
    "door", [{"url_aliases": "trust", "identity": "bytes", "cache_bytes": 0}], indirect=True
)
async def test_a_trusted_address_travels_by_its_identity_and_with_its_file_when_that_is_missed(
    door: Door, server: Origin
) -> None:
    parts = image(server.url("/a")), image(data_url(OTHER))
    _, first = await door.send(*parts)
    _, second = await door.send(*parts)
    assert [item.form for item in first.media] == ["file", "file"]
    assert ([item.form for item in second.media], second.can_be_completed) == (["held", "file"], True)
    assert second.payload == OTHER
    assert door.fetcher.counts.downloads == 1
    _, whole = await door.send(*parts, is_complete=True)
    assert (whole.payload, whole.can_be_completed, whole.lacks_bytes) == (SMALL + OTHER, False, False)


async def test_a_uuid_alone_travels_without_bytes_and_cannot_be_completed(door: Door) -> None:
    await door.send(image(data_url(SMALL), uuid="mine"))
    prompt, shipment = await door.send(image(None, uuid="mine"))
    assert prompt.is_exact
    assert (shipment.payload, shipment.lacks_bytes, shipment.can_be_completed) == (None, True, False)


async def test_a_uuid_alone_without_a_known_size_is_routed_by_its_text_by_name(door: Door) -> None:
    prompt, _ = await door.send(image(None, uuid="never seen"))
    assert prompt.reasons == (DegradeReason.CLIENT_UUID_WITHOUT_SIZE,)
    assert prompt.estimated_media_tokens > 0


async def test_one_item_that_fails_fails_the_request_on_its_path(door: Door, server: Origin) -> None:
    """No list of media is ever shorter than the request's (dynamo#9272)."""
    with pytest.raises(RequestError) as caught:
        await door.send(image(server.url("/a")), image(server.url("/none")), image(data_url(OTHER)))
    assert (caught.value.status, caught.value.param) == (404, "messages[0].content[1].image_url")


@pytest.mark.parametrize("door", [{"max_request_bytes": len(SMALL) + len(OTHER) - 1}], indirect=True)
async def test_all_media_together_have_a_limit(door: Door) -> None:
    await door.send(image(data_url(SMALL)))
    with pytest.raises(RequestError, match=r"media\.max_request_bytes") as caught:
        await door.send(image(data_url(SMALL)), image(data_url(OTHER)))
    assert caught.value.status == 413


async def test_every_byte_of_a_data_url_counts(door: Door) -> None:
    """A hash over its beginning would make these one (vllm-mlx#206)."""
    padded = [SMALL + bytes(100_000) + tail for tail in (b"a", b"b")]
    ids = [(await door.send(image(data_url(data))))[1].media[0].media_id for data in padded]
    assert ids[0] != ids[1]

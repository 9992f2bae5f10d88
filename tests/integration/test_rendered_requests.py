"""A chat request whose prompt the engine's renderer foresees: the real service and router; the renderer on a
script."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from ray.exceptions import RayActorError

from deployments.chat import ChatService
from deployments.config import IngressConfig
from deployments.layout_source import LayoutSource
from deployments.openai_api import ChatRequest
from deployments.protocol import Started
from deployments.rendered import Rendered, RenderedItem
from processors import RequestError
from router.client import RouterClient
from sightline_types import DegradeReason, MediaId, Modality
from tests.integration.test_chat_service import END, HELLO, PICTURE, House
from tests.integration.worker import CONTRACT, A, B

RENDERED = RenderedItem(Modality.IMAGE, 10, 30, MediaId(77), MediaId(78))


class Renderer:
    """As much of the renderer's handle as the service uses. answer: what it sends, or raises."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.render = self
        self.calls: list[Any] = []

    async def remote(self, request: Any, payload: Any) -> Any:
        self.calls.append((request, payload))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def answer(length: int = 200) -> Rendered:
    return Rendered(np.arange(length, dtype="<i4").tobytes(), (RENDERED,), "renderer")


@pytest_asyncio.fixture
async def house() -> House:
    house = House()
    await house.join(A, B, contract=replace(CONTRACT, max_model_len=1000))
    house.prompts.media = (PICTURE,)
    house.files.content["http://pictures/one.png"] = b"picture"
    house.plays([Started, HELLO, END])
    return house


async def start(house: House, renderer: Renderer, **options: Any) -> Any:
    layouts = LayoutSource("renderer", "m", renderer, timeout_s=30)  # type: ignore[arg-type]
    client = RouterClient(house.link, budget_s=30)  # type: ignore[arg-type]
    await client.pool(5.0)
    service = ChatService(
        IngressConfig(model="m", served_model_name="m"),
        house.prompts,  # type: ignore[arg-type]
        house.files,  # type: ignore[arg-type]
        client,
        house.engine,  # type: ignore[arg-type]
        house.live,
        layouts=layouts,
    )
    request = {"model": "m", "messages": [{"role": "user", "content": "hello"}]} | options
    return await service.start(ChatRequest.model_validate(request))


async def test_the_renderers_identity_is_the_engines(house: House) -> None:
    renderer = Renderer(answer())
    reply = await start(house, renderer)
    (call,) = house.engine.calls
    assert [item.media_id for item in call.request.media] == [MediaId(77)]
    assert call.request.token_ids == tuple(range(100)), "the engine expands the prompt itself"
    assert call.payload == b"picture"
    assert reply.receipt.decision.num_tokens == 200
    assert reply.receipt.decision.first_media_offset == 10


async def test_the_renderer_gets_what_the_engine_would_get(house: House) -> None:
    renderer = Renderer(answer())
    await start(house, renderer, mm_processor_kwargs={"min_pixels": 4})
    ((request, payload),) = renderer.calls
    assert (request.token_ids, payload) == (tuple(range(100)), b"picture")
    assert request.mm_processor_kwargs == {"min_pixels": 4}


async def test_a_dead_renderer_costs_exactness_and_no_request(house: House) -> None:
    reply = await start(house, Renderer(RayActorError()))
    assert DegradeReason.RENDERER_UNAVAILABLE in reply.receipt.decision.degraded
    assert [item.media_id for item in house.engine.calls[0].request.media] == [PICTURE.media_id]


async def test_a_prompt_that_turns_out_too_long_is_refused_before_anything_is_booked(house: House) -> None:
    with pytest.raises(RequestError, match="1200 tokens") as caught:
        await start(house, Renderer(answer(1200)))
    assert caught.value.code == "context_length_exceeded"
    assert house.engine.calls == []
    assert await house.booked() == {}

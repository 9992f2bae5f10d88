"""Pictures that are sent by their identity alone, on the real engine: held, not held, and lost on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from app.tiny_models import tiny_model
from deployments.engines.vllm import VllmEngine
from deployments.protocol import EngineMedia, EngineMessage, EngineRequest, Finished, NotHeld, Sampling
from deployments.uuids import UuidLedger
from processors import PromptBuilder, decode_image
from sightline_types import DecisionId, PreparedPrompt
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench
from tests.engines.service import QUESTION, messages

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(models: Path) -> AsyncIterator[Bench]:
    bench = Bench(str(tiny_model("qwen3_vl", models)))
    await bench.start()
    yield bench
    await bench.stop()


def named(uuid: str, data: bytes | None = None) -> list[dict[str, Any]]:
    url = None if data is None else {"url": make.data_url(data)}
    return messages({"type": "image_url", "image_url": url, "uuid": uuid}, QUESTION)


class Sender:
    """Sends prepared prompts to the engine as a replica does."""

    def __init__(self, bench: Bench) -> None:
        self.prompts: PromptBuilder = bench.prompts
        self.engine: VllmEngine = bench.engine
        self.count = 0

    async def __call__(
        self, turns: list[dict[str, Any]], data: bytes | None = None
    ) -> tuple[PreparedPrompt, list[EngineMessage]]:
        prompt = await self.prompts.prepare(turns)
        (item,) = prompt.media
        form: Any = "held" if data is None else "file"
        media = EngineMedia(
            item.modality, item.media_id, form, 0, len(data or b""), size=item.size, is_named=True
        )
        self.count += 1
        request = EngineRequest(
            DecisionId(f"{self.count:016x}"),
            prompt.token_ids,
            Sampling(max_tokens=2, ignore_eos=True),
            (media,),
        )
        pictures = [None if data is None else decode_image(data, max_pixels=10**9)]
        return prompt, [message async for message in self.engine.generate(request, pictures)]


async def test_a_uuid_alone_is_served_from_what_the_engine_holds(bench: Bench) -> None:
    send, data = Sender(bench), make.png(901)
    with_picture, first = await send(named("one", data), data)
    alone, second = await send(named("one"))
    assert isinstance(first[-1], Finished) and isinstance(second[-1], Finished)
    assert alone.media[0].media_id == with_picture.media[0].media_id
    assert len(alone.view) == len(with_picture.view) == second[-1].prompt_tokens
    assert second[-1].cached_tokens == (second[-1].prompt_tokens - 1) // 32 * 32


async def test_a_uuid_that_the_engine_never_saw_is_not_held_and_the_engine_goes_on(bench: Bench) -> None:
    send, data = Sender(bench), make.png(902)
    assert (await send(named("never")))[1] == [NotHeld()]
    assert isinstance((await send(named("never", data), data))[1][-1], Finished)


async def test_pixels_that_the_engines_process_lost_are_sent_again(bench: Bench) -> None:
    """vLLM's two caches drift: its frontend sends nothing for what its core has dropped."""
    send, data = Sender(bench), make.png(903)
    await send(named("drift", data), data)
    assert await bench.engine.reset_prefix_cache()
    await bench.engine._llm.engine_core.reset_mm_cache_async()
    _, answer = await send(named("drift", data), data)
    assert isinstance(answer[-1], Finished)
    assert answer[-1].completion_tokens == 2


async def test_a_uuid_alone_whose_pixels_the_engines_process_lost_is_not_held(bench: Bench) -> None:
    send, data = Sender(bench), make.png(904)
    await send(named("lost", data), data)
    await bench.engine._llm.engine_core.reset_mm_cache_async()
    assert (await send(named("lost")))[1] == [NotHeld()]


async def test_the_first_picture_of_a_uuid_answers_for_later_ones_and_the_ledger_knows(bench: Bench) -> None:
    """Why `UuidLedger` exists: the engine's prompt is that of the first picture, whatever comes."""
    send, small, large = Sender(bench), make.png(905, (96, 96)), make.png(906, (320, 320))
    prompt, first = await send(named("taken", small), small)
    _, second = await send(named("taken", large), large)
    assert isinstance(first[-1], Finished) and isinstance(second[-1], Finished)
    assert second[-1].prompt_tokens == first[-1].prompt_tokens
    ledger, (item,) = UuidLedger(), prompt.media
    sent = EngineMedia(item.modality, item.media_id, "file", 0, len(small), size=item.size, is_named=True)
    assert ledger.note((sent,), small)
    assert not ledger.note((replace(sent, length=len(large)),), large)
    assert ledger.conflicts == 1


async def test_an_engine_without_a_cache_for_media_says_that_it_never_holds_any(bench: Bench) -> None:
    multimodal = SimpleNamespace(mm_processor_cache_gb=0)
    settings = SimpleNamespace(model_config=SimpleNamespace(multimodal_config=multimodal))
    send = Sender(bench)
    send.engine = VllmEngine(SimpleNamespace(vllm_config=settings), {}, bench.engine._load, None)
    assert (await send(named("one")))[1] == [NotHeld(keeps_media=False)]

"""Clips decoded before the choice of a worker: predicted length and overlap against the engine itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.tiny_models import tiny_model
from deployments.protocol import EngineRequest, Failed, Sampling
from deployments.transport import pack
from sightline_types import DecisionId
from tests.engines import clips
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_lengths, check_no_false_credit, check_repeat
from tests.engines.clip_checks import check_clip_lengths, check_replica_decoded, clip
from tests.engines.service import INTRODUCTION, QUESTION, image_part, messages

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]

KINDS = ("qwen3_vl", "qwen2_5_vl", "qwen2_vl")
#: Size, frames, frames a second: one frame too few is the engine's own refusal, odd counts are padded by it.
SHAPES = (
    ((64, 48), 2, 10),
    ((96, 64), 3, 24),
    ((160, 128), 5, 30),
    ((128, 96), 12, 10),
    ((320, 180), 7, 25),
    ((48, 200), 9, 1),
    ((200, 32), 33, 10),
    ((100, 100), 64, 5),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def bench(request: pytest.FixtureRequest, models: Path) -> AsyncIterator[Bench]:
    bench = Bench(str(tiny_model(request.param, models)))
    await bench.start()
    yield bench
    await bench.stop()


def picture(seed: int) -> dict[str, Any]:
    return image_part(make.data_url(make.png(seed, (200, 200))))


async def test_prompt_lengths_are_the_engines(bench: Bench) -> None:
    await check_clip_lengths(bench, SHAPES)


async def test_a_repeat_is_foretold_exactly(bench: Bench) -> None:
    await check_repeat(bench, messages(clip(50), QUESTION))


async def test_another_clip_earns_nothing_from_its_twin(bench: Bench) -> None:
    await check_no_false_credit(bench, messages(clip(51), QUESTION), messages(clip(52), QUESTION))


async def test_adjacent_clips_and_pictures_are_placed_exactly(bench: Bench) -> None:
    parts = [picture(60), clip(61), clip(62, num_frames=5), picture(63), QUESTION]
    seen = await check_repeat(bench, messages(*parts, system=INTRODUCTION + "Compare."))
    assert len(seen.prompt.view.spans) == 4
    await check_lengths(bench, messages(clip(64), clip(65), clip(64), "Which two are one?"))


async def test_one_clip_in_another_container_is_held(bench: Bench) -> None:
    data = clips.clip(70)
    await bench.ask(messages(clips.inline(data), QUESTION))
    again = await bench.ask(messages(clips.inline(clips.remuxed(data, "matroska")), QUESTION))
    assert again.predicted_cached == again.cached_tokens
    assert again.media_overlap == again.media_blocks >= 3


async def test_the_same_frames_at_another_rate_are_not_held(bench: Bench) -> None:
    data = clips.clip(71)
    slow = clips.slowed(data, 2)
    await check_no_false_credit(
        bench, messages(clips.inline(data), QUESTION), messages(clips.inline(slow), QUESTION)
    )


async def test_a_clip_that_the_replica_decodes_is_served_and_earns_what_is_before_it(bench: Bench) -> None:
    again = await check_replica_decoded(bench, picture(80))
    assert again.media_overlap > 0


async def test_options_under_which_the_processor_breaks_are_a_400(bench: Bench) -> None:
    """transformers (5.19) asserts where a clip whose frames are chosen already is to be sampled again."""
    prompt = await bench.prompts.prepare(messages(clip(90), QUESTION))
    media, payload = pack(prompt.media, [item.source.data for item in prompt.media])
    options = {"num_frames": 2, "do_sample_frames": True}
    request = EngineRequest(
        DecisionId("90"), prompt.token_ids, Sampling(max_tokens=1), media, mm_processor_kwargs=options
    )
    decoded = await bench.media.decode(media, payload)
    (answer,) = [message async for message in bench.engine.generate(request, decoded)]
    assert isinstance(answer, Failed) and answer.status == 400

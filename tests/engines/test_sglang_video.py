"""Clips on real SGLang in this process: served, as long as foretold, and found again in its cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.tiny_models import tiny_model
from processors import MediaConfig, ModelFiles, PromptBuilder
from sightline_types import DegradeReason
from tests.engines import clips
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_lengths, check_repeat
from tests.engines.service import INTRODUCTION, QUESTION, image_part, messages

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]

KINDS = ("qwen3_vl", "qwen2_5_vl", "qwen2_vl")
#: Size, frames, frames a second.
SHAPES = (
    ((64, 48), 2, 10),
    ((96, 64), 3, 24),
    ((160, 128), 5, 30),
    ((320, 180), 7, 25),
    ((48, 200), 9, 1),
    ((200, 32), 33, 10),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def bench(request: pytest.FixtureRequest, models: Path) -> AsyncIterator[Bench]:
    bench = Bench(str(tiny_model(request.param, models)), engine="sglang", page_size=16)
    await bench.start()
    yield bench
    await bench.stop()


def clip(seed: int, **more: Any) -> dict[str, Any]:
    return clips.inline(clips.clip(seed, **more))


def picture(seed: int) -> dict[str, Any]:
    return image_part(make.data_url(make.png(seed, (200, 200))))


async def check_stranger(bench: Bench, first: dict[str, Any], other: dict[str, Any]) -> None:
    """What is before a clip's first frames is all that another clip earns."""
    await bench.ask(messages(first, QUESTION))
    seen = await bench.ask(messages(other, QUESTION))
    assert seen.predicted_cached == seen.cached_tokens, (seen.predicted_cached, seen.cached_tokens)
    (span,) = seen.prompt.view.spans
    first_frames = span.embed_runs[0][0]
    assert 0 < seen.cached_tokens <= first_frames


async def test_the_worker_says_that_clips_are_exact(bench: Bench) -> None:
    assert [layout.exact for layout in bench.contract.layouts] == [True] * 3, bench.contract.layouts
    assert [layout.family.partition("+")[2] for layout in bench.contract.layouts] == [
        "",
        "video",
        "image+video",
    ]


async def test_prompt_lengths_are_the_engines(bench: Bench) -> None:
    for number, (size, num_frames, fps) in enumerate(SHAPES):
        part = clip(number, size=size, num_frames=num_frames, fps=fps)
        seen = await check_lengths(bench, messages(part, "What?"))
        assert seen.prompt.is_exact, (size, num_frames, fps, seen.prompt.reasons)


async def test_a_repeat_is_foretold_exactly(bench: Bench) -> None:
    await check_repeat(bench, messages(clip(50), QUESTION))


async def test_another_clip_earns_nothing_from_its_twin(bench: Bench) -> None:
    await check_stranger(bench, clip(51), clip(52))


async def test_the_same_frames_at_another_rate_are_not_held(bench: Bench) -> None:
    data = clips.clip(71)
    await check_stranger(bench, clips.inline(data), clips.inline(clips.slowed(data, 2)))


async def test_a_clip_beside_pictures_is_placed_exactly(bench: Bench) -> None:
    parts = [picture(60), clip(61), picture(63), QUESTION]
    seen = await check_repeat(bench, messages(*parts, system=INTRODUCTION + "Compare."))
    assert len(seen.prompt.view.spans) == 3


async def test_several_clips_are_exact_or_served_by_name_where_sglang_takes_them_for_one(
    bench: Bench,
) -> None:
    turns = messages(clip(64), picture(60), clip(65), clip(64), "Which two are one? " + QUESTION)
    if bench.contract.layouts[0].family.startswith("qwen3"):
        await check_repeat(bench, turns)
        return
    await bench.ask(turns)
    again = await bench.ask(turns)
    assert again.prompt.reasons == (DegradeReason.MEDIA_MIX,)
    assert 0 < again.predicted_cached < again.cached_tokens


async def test_a_clip_that_the_replica_decodes_is_served_and_earns_what_is_before_it(bench: Bench) -> None:
    turns = messages(picture(80), clip(81, num_frames=20), QUESTION)
    media, files = MediaConfig(identity="content"), ModelFiles.load(bench.contract.model)
    exact = bench.prompts
    bench.prompts = PromptBuilder(files, media, enable_multimodal=True, fetcher=bench.fetcher)
    try:
        await bench.ask(turns)
        again = await bench.ask(turns)
    finally:
        bench.prompts = exact
    assert again.prompt.reasons == (DegradeReason.VIDEO_DECODED_BY_ENGINE,)
    # Foretold as far as it is known; the engine itself also finds the clip again.
    assert 0 < again.predicted_cached < again.cached_tokens

"""Real SGLang in this process, family by family: pictures, clips, and the pads that it publishes.

One engine serves all tests of a family. Qwen2-VL's publishes its events in Dynamo's format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from app.tiny_models import tiny_model
from router.pads import pad_values
from sightline_types import DegradeReason, KeyScheme
from tests.engines import clips
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_lengths, check_no_false_credit, check_repeat
from tests.engines.clip_checks import check_clip_lengths, check_replica_decoded, clip
from tests.engines.never_lost import replay
from tests.engines.service import INTRODUCTION, QUESTION, image_part, messages

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]

#: Families, and the format of their engines' events.
KINDS = {"qwen3_vl": "default", "qwen2_5_vl": "default", "qwen2_vl": "dynamo"}
SIZES = ((64, 64), (200, 200), (333, 127), (42, 70), (80, 48), (1200, 20), (30, 600), (640, 480), (1081, 723))
#: Of clips: size, frames, frames a second.
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
    events = {"format": KINDS[request.param]}
    model = str(tiny_model(request.param, models))
    bench = Bench(model, engine="sglang", page_size=16, kv_events_config=events)
    await bench.start()
    yield bench
    await bench.stop()


def picture(seed: int, size: tuple[int, int] = make.SIZE) -> dict[str, Any]:
    return image_part(make.data_url(make.png(seed, size)))


async def ask_twice(bench: Bench, turns: list[dict[str, Any]]) -> None:
    again = await check_repeat(bench, turns)
    assert again.media_overlap == again.media_blocks


async def test_the_worker_says_that_pictures_and_clips_are_exact(bench: Bench) -> None:
    layouts = bench.contract.layouts
    assert [layout.exact for layout in layouts] == [True] * 3, layouts
    assert [layout.family.partition("+")[2] for layout in layouts] == ["", "video", "image+video"]
    assert bench.contract.scheme is KeyScheme.SGLANG_WIDE


async def test_prompt_lengths_are_the_engines(bench: Bench) -> None:
    for number, size in enumerate(SIZES):
        seen = await check_lengths(bench, messages(picture(number, size), "What?"))
        assert seen.prompt.is_exact


async def test_a_repeat_is_foretold_exactly(bench: Bench) -> None:
    await ask_twice(bench, messages(picture(50), QUESTION))


async def test_another_picture_earns_nothing_from_its_twin(bench: Bench) -> None:
    await check_no_false_credit(bench, messages(picture(51), QUESTION), messages(picture(52), QUESTION))


async def test_several_pictures_of_several_sizes_are_placed_exactly(bench: Bench) -> None:
    parts = [picture(60, (352, 320)), "and", picture(61, (200, 200)), picture(62, (333, 127)), QUESTION]
    await ask_twice(bench, messages(*parts, system=INTRODUCTION + "Compare."))


async def test_the_engine_publishes_the_pads_of_the_formula(bench: Bench) -> None:
    seen = await bench.ask(messages(picture(70), "Which pads? " + QUESTION))
    await bench.wait_idle()
    source = bench.engine.event_source()
    assert source is not None and source.replay_endpoint is not None
    published = [
        token
        for payload in replay(source.replay_endpoint)
        for event in msgspec.msgpack.decode(payload)[1]
        for token in event.get("token_ids", ())
    ]
    (span,) = seen.prompt.view.spans
    expected = pad_values(bench.contract.scheme, span.media_id)
    pads = [token for token in published if token in expected]
    page = bench.contract.block_size
    num_stored = min(span.end, seen.prompt_tokens // page * page) - span.offset
    assert pads == [expected[i % len(expected)] for i in range(num_stored)]


async def test_after_a_flush_nothing_is_foretold(bench: Bench) -> None:
    turns = messages(picture(53), QUESTION)
    await ask_twice(bench, turns)
    await bench.flush()
    seen = await bench.ask(turns)
    assert seen.predicted_cached == seen.cached_tokens == 0


async def check_stranger(bench: Bench, first: dict[str, Any], other: dict[str, Any]) -> None:
    """What is before a clip's first frames is all that another clip earns."""
    await bench.ask(messages(first, QUESTION))
    seen = await bench.ask(messages(other, QUESTION))
    assert seen.predicted_cached == seen.cached_tokens, (seen.predicted_cached, seen.cached_tokens)
    (span,) = seen.prompt.view.spans
    first_frames = span.embed_runs[0][0]
    assert 0 < seen.cached_tokens <= first_frames


async def test_prompt_lengths_of_clips_are_the_engines(bench: Bench) -> None:
    await check_clip_lengths(bench, SHAPES)


async def test_a_repeated_clip_is_foretold_exactly(bench: Bench) -> None:
    await check_repeat(bench, messages(clip(50), QUESTION))


async def test_another_clip_earns_nothing_from_its_twin(bench: Bench) -> None:
    await check_stranger(bench, clip(51), clip(52))


async def test_the_same_frames_at_another_rate_are_not_held(bench: Bench) -> None:
    data = clips.clip(71)
    await check_stranger(bench, clips.inline(data), clips.inline(clips.slowed(data, 2)))


async def test_a_clip_beside_pictures_is_placed_exactly(bench: Bench) -> None:
    parts = [picture(60, (200, 200)), clip(61), picture(63, (200, 200)), QUESTION]
    seen = await check_repeat(bench, messages(*parts, system=INTRODUCTION + "Compare."))
    assert len(seen.prompt.view.spans) == 3


async def test_several_clips_are_exact_or_served_by_name_where_sglang_takes_them_for_one(
    bench: Bench,
) -> None:
    turns = messages(clip(64), picture(60, (200, 200)), clip(65), clip(64), "Which two are one? " + QUESTION)
    if bench.contract.layouts[0].family.startswith("qwen3"):
        await check_repeat(bench, turns)
        return
    await bench.ask(turns)
    again = await bench.ask(turns)
    assert again.prompt.reasons == (DegradeReason.MEDIA_MIX,)
    assert 0 < again.predicted_cached < again.cached_tokens


async def test_a_clip_that_the_replica_decodes_is_served_and_earns_what_is_before_it(bench: Bench) -> None:
    await check_replica_decoded(bench, picture(80, (200, 200)))

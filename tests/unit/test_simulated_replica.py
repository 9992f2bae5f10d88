"""The simulated engine's adapter, without Ray: what it is given, what it answers, what it publishes."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.tiny_models import tiny_model
from app.tiny_tokenizer import token_id
from deployments.config import EngineConfig
from deployments.engines import media_source, start_engine
from deployments.engines.base import EngineGone
from deployments.engines.simulated import SimulatedServingEngine
from deployments.engines.simulated_clock import EngineClock
from deployments.protocol import Delta, EngineMedia, EngineRequest, Failed, Finished, NotHeld, Sampling
from processors import LayoutOptions, ModelFiles, find_layout
from router.residency import Residency
from router.subscription import EventSubscription
from sightline_types import (
    DecisionId,
    DegradeReason,
    ImageSize,
    KeyScheme,
    KeySpec,
    MediaId,
    Modality,
    VideoShape,
)
from simulation import EngineSpec, Profile, SimulatedEngine
from simulation.config import SimulationConfig
from tests.unit.tiny_files import tiny_folder

BLOCK = 16
IMAGE_PAD = token_id("<|image_pad|>")
PICTURE = EngineMedia(Modality.IMAGE, MediaId(7), "file", 0, 0)
HELD = EngineMedia(Modality.IMAGE, MediaId(7), "held", 0, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model("qwen3_vl", tmp_path_factory.mktemp("models"), with_weights=False)


def config(folder, *, block_size=BLOCK, max_model_len=None, **simulation: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        engine="simulated",
        enable_multimodal=True,
        block_size=block_size,
        max_model_len=max_model_len,
        simulation=SimulationConfig(**{"speedup": 0} | simulation),
    )


@asynccontextmanager
async def started(folder, **options: Any) -> AsyncIterator[SimulatedServingEngine]:
    engine = await start_engine(config(folder, **options))
    assert isinstance(engine, SimulatedServingEngine)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.shutdown)


def request(name: str, token_ids, media=(), *, salt=None, kwargs=None, **sampling: Any) -> EngineRequest:
    return EngineRequest(
        DecisionId(name),
        tuple(token_ids),
        Sampling(**{"max_tokens": 4} | sampling),
        tuple(media),
        cache_salt=salt,
        mm_processor_kwargs=kwargs or {},
    )


async def ask(engine, asked: EngineRequest, shapes=()) -> list[Any]:
    async with asyncio.timeout(60):
        return [message async for message in engine.generate(asked, shapes)]


def prompt(length: int, start: int = 20) -> list[int]:
    return [start + i % 200 for i in range(length)]


async def test_a_repeated_prompt_is_cached_as_far_as_vllm_caches_it(folder):
    async with started(folder) as engine:
        for number, (length, cached) in enumerate([(64, 48), (65, 64), (15, 0)]):
            first = await ask(engine, request(f"a{number}", prompt(length, number)))
            again = await ask(engine, request(f"b{number}", prompt(length, number)))
            assert (first[-1].cached_tokens, again[-1].cached_tokens) == (0, cached)
            assert again[-1].prompt_tokens == length


async def test_the_expanded_prompt_comes_back_where_it_is_wanted(folder):
    async with started(folder) as engine:
        asked = request("a", prompt(20))
        assert (await ask(engine, asked))[-1].prompt_token_ids == ()
        wanted = replace(asked, decision_id=DecisionId("b"), wants_prompt_ids=True)
        assert (await ask(engine, wanted))[-1].prompt_token_ids == tuple(prompt(20))


async def test_deltas_and_usage_tell_the_same_answer(folder):
    async with started(folder) as engine:
        *deltas, finished = await ask(engine, request("a", prompt(20), max_tokens=9))
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert len(tokens) == finished.completion_tokens == 9
        text = "".join(delta.text for delta in deltas)
        assert text == ModelFiles.load(folder).tokenizer.decode(tokens)
        assert (await ask(engine, request("b", prompt(20), max_tokens=9)))[0].text == deltas[0].text


async def test_pictures_are_laid_out_as_the_family_does_and_keyed_by_identity(folder):
    layout = find_layout(ModelFiles.load(folder), LayoutOptions())
    size = ImageSize(640, 480)
    num_tokens = len(layout.replacement(size).ids)
    ids = [*prompt(20), IMAGE_PAD, *prompt(20)]
    other = EngineMedia(Modality.IMAGE, MediaId(8), "file", 0, 0)
    async with started(folder) as engine:
        first = await ask(engine, request("a", ids, [PICTURE]), [size])
        again = await ask(engine, request("b", ids, [PICTURE]), [size])
        another = await ask(engine, request("c", ids, [other]), [size])
    assert first[-1].prompt_tokens == 40 + num_tokens
    assert again[-1].cached_tokens == (40 + num_tokens - 1) // BLOCK * BLOCK
    assert another[-1].cached_tokens == 16


async def test_a_clip_is_laid_out_by_the_frames_that_come(folder):
    shape = VideoShape(ImageSize(64, 48), 4, 30.0, (0, 20, 39, 59), 60)
    clip = EngineMedia(Modality.VIDEO, MediaId(9), "frames", 0, 4 * 48 * 64 * 3, (4, 48, 64, 3), shape)
    layout = find_layout(ModelFiles.load(folder), LayoutOptions())
    source = await media_source(config(folder))
    ids = [*prompt(20), token_id("<|video_pad|>")]
    async with started(folder) as engine:
        shapes = await source.decode([clip], bytes(clip.length))
        finished = (await ask(engine, request("a", ids, [clip]), shapes))[-1]
        families = {one.family for one in (await engine.contract()).layouts}
    await source.aclose()
    assert finished.prompt_tokens == 20 + len(layout.replacement(shape).ids)
    assert families == {"qwen3_vl", "qwen3_vl+video", "qwen3_vl+image+video"}


async def test_an_item_that_comes_by_its_identity_alone_is_held_once_it_was_given(folder):
    ids = [*prompt(5), IMAGE_PAD]
    async with started(folder) as engine:
        assert await ask(engine, request("a", ids, [HELD]), [None]) == [NotHeld()]
        given = await ask(engine, request("b", ids, [PICTURE]), [ImageSize(100, 100)])
        held = await ask(engine, request("c", ids, [HELD]), [None])
    assert held[-1].prompt_tokens == given[-1].prompt_tokens


async def test_an_identity_is_believed_over_the_file_that_comes_with_it(folder):
    ids = [*prompt(5), IMAGE_PAD]
    async with started(folder) as engine:
        first = await ask(engine, request("a", ids, [PICTURE]), [ImageSize(100, 100)])
        second = await ask(engine, request("b", ids, [PICTURE]), [ImageSize(900, 900)])
    assert first[-1].prompt_tokens == second[-1].prompt_tokens


async def test_salt_and_processor_options_keep_caches_apart(folder):
    ids, shapes = [*prompt(40), IMAGE_PAD, *prompt(40)], [ImageSize(640, 480)]
    async with started(folder) as engine:
        plain = await ask(engine, request("a", ids, [PICTURE]), shapes)
        salted = await ask(engine, request("b", ids, [PICTURE], salt="tenant"), shapes)
        sized = await ask(engine, request("c", ids, [PICTURE], kwargs={"max_pixels": 65536}), shapes)
    assert salted[-1].cached_tokens == 0
    assert sized[-1].cached_tokens == 32
    assert sized[-1].prompt_tokens < plain[-1].prompt_tokens


@pytest.mark.parametrize(
    ("asked", "shapes", "word"),
    [
        (request("r", prompt(64)), (), "max_model_len"),
        (request("r", []), (), "empty"),
        (request("r", prompt(4), logprobs=1), (), "logprobs"),
        (request("r", prompt(4), min_tokens=9), (), "min_tokens"),
        (request("r", prompt(4), [PICTURE]), (ImageSize(64, 64),), "placeholders"),
        (request("r", [IMAGE_PAD], [PICTURE]), (ImageSize(4000, 10),), "aspect"),
    ],
)
async def test_what_vllm_refuses_is_refused_by_name(folder, asked, shapes, word):
    async with started(folder, max_model_len=64) as engine:
        (failed,) = await ask(engine, asked, shapes)
    assert isinstance(failed, Failed) and failed.status == 400
    assert word in failed.message


async def test_an_answer_ends_where_the_model_s_length_does(folder):
    async with started(folder, max_model_len=64) as engine:
        finished = (await ask(engine, request("a", prompt(60), max_tokens=1000)))[-1]
    assert (finished.completion_tokens, finished.finish_reason) == (4, "length")


async def test_a_small_cache_evicts_and_says_so(folder):
    async with started(folder, num_blocks=9) as engine:
        first = request("a", prompt(81, 1))
        for other in (first, request("b", prompt(81, 2))):
            await ask(engine, other)
        again = await ask(engine, request("c", first.token_ids))
        assert again[-1].cached_tokens < 80
        assert await held_keys(engine) <= 8


async def held_keys(engine: SimulatedServingEngine) -> int:
    """Blocks that its events say it holds."""
    residency = Residency(KeySpec(KeyScheme.VLLM, BLOCK))
    subscription = EventSubscription(
        engine.event_source(),
        on_batch=lambda batch: [residency.apply(event) for event in batch.events],
        on_lost=pytest.fail,
        on_garbage=pytest.fail,
        on_restart=lambda: pytest.fail("restart"),
        on_caught_up=lambda: None,
    )
    task = asyncio.create_task(subscription.run())
    async with asyncio.timeout(60):
        await subscription.caught_up.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    subscription.close()
    assert residency.faults == type(residency.faults)()
    return residency.num_blocks()


async def test_a_request_that_is_closed_leaves_the_engine(folder):
    slow = {"profile": {"decode_base_ms": 5.0}, "speedup": 1.0}
    async with started(folder, **slow) as engine:
        messages = engine.generate(request("a", prompt(40), max_tokens=3000), [])
        assert isinstance(await anext(messages), Delta)
        assert engine.load().num_running == 1
        assert not await engine.reset_prefix_cache()
        await messages.aclose()
        assert engine.load().num_running == 0
        assert await engine.reset_prefix_cache()
        after = await ask(engine, request("b", prompt(40)))
        assert after[-1].cached_tokens == 0


async def test_tokens_that_nobody_asked_for_in_time_come_together(folder):
    async with started(folder) as engine:
        messages = engine.generate(request("a", prompt(4), max_tokens=50), [])
        first = await anext(messages)
        while engine.load().num_running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)  # the last step's token is told in the next turn
        rest = [message async for message in messages]
    assert len(first.token_ids) == 1
    assert [type(message) for message in rest] == [Delta, Finished]
    assert len(rest[0].token_ids) == 49


async def test_requests_run_side_by_side(folder):
    async with started(folder, max_num_seqs=8) as engine:
        requests = [request(f"r{n}", prompt(100, n), max_tokens=20) for n in range(32)]
        answers = await asyncio.gather(*(ask(engine, one) for one in requests))
    assert all(answer[-1].completion_tokens == 20 for answer in answers)


async def test_the_largest_picture_is_taken_however_few_tokens_a_step_computes(folder):
    ids = [*prompt(5), IMAGE_PAD]
    async with started(folder, max_num_batched_tokens=64) as engine:
        finished = (await ask(engine, request("a", ids, [PICTURE]), [ImageSize(8000, 8000)]))[-1]
    assert finished.prompt_tokens > 1000


@pytest.mark.parametrize(("speedup", "elapsed_s"), [(1.0, 0.8), (4.0, 0.2), (0.0, 0.0), (float("inf"), 0.0)])
async def test_a_step_takes_its_time_divided_by_the_speedup(folder, speedup, elapsed_s):
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds * 1.25  # the machine is late, every time
        await asyncio.sleep(0)

    async with started(folder) as engine:
        scheduled = engine._layouter.schedule(request("a", prompt(4), max_tokens=21), [])
    spec, profile = EngineSpec(block_size=BLOCK), Profile(decode_base_ms=40.0)
    clock = EngineClock(
        SimulatedEngine(spec, profile),
        None,
        block_size=BLOCK,
        speedup=speedup,
        clock=lambda: now[0],
        sleep=sleep,
    )
    clock.start()
    async with asyncio.timeout(60):
        [progress async for progress in clock.serve(scheduled)]
    await clock.aclose()
    # 20 steps; what one was late the next one makes good.
    assert elapsed_s <= now[0] <= elapsed_s + 0.0125


async def test_an_engine_that_stopped_is_dead_and_tells_its_requests(folder):
    async with started(folder) as engine:
        messages = engine.generate(request("a", prompt(4), max_tokens=3000), [])
        await anext(messages)
        await engine._clock.aclose()
        with pytest.raises(EngineGone):
            [message async for message in messages]
        with pytest.raises(EngineGone):
            await ask(engine, request("b", prompt(4)))
        assert engine.is_dead
        with pytest.raises(RuntimeError):
            await engine.check_health()


async def test_the_contract_promises_what_the_registry_lays_out(folder, tmp_path):
    async with started(folder) as engine:
        contract = await engine.contract()
        assert (contract.engine, contract.scheme, contract.block_size) == ("simulated", KeyScheme.VLLM, BLOCK)
        assert contract.publishes_events and contract.max_model_len == 32768
        assert all(layout.exact for layout in contract.layouts) and contract.layouts
    async with started(tiny_folder(tmp_path / "other", "unheard_of")) as engine:
        (layout,) = (await engine.contract()).layouts
        assert not layout.exact and layout.reason is DegradeReason.UNSUPPORTED_FAMILY


async def test_without_events_nothing_is_published(folder):
    async with started(folder, publishes_events=False) as engine:
        assert engine.event_source() is None
        assert not (await engine.contract()).publishes_events
        await ask(engine, request("a", prompt(40)))


def file_of(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("decodes", [True, False])
async def test_a_picture_s_shape_is_read_of_its_file_whatever_was_foreseen(folder, decodes):
    data = file_of((30, 20))
    pixels = np.zeros((5, 9, 3), dtype=np.uint8).tobytes()
    media = [
        EngineMedia(Modality.IMAGE, MediaId(1), "file", 0, len(data), size=ImageSize(1, 1)),
        EngineMedia(Modality.IMAGE, MediaId(2), "pixels", len(data), len(pixels), (5, 9, 3)),
        HELD,
    ]
    source = await media_source(config(folder, decode_media=decodes))
    try:
        shapes = await source.decode(media, data + pixels)
    finally:
        await source.aclose()
    assert shapes == [ImageSize(30, 20), ImageSize(9, 5), None]

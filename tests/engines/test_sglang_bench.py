"""Real SGLang in this process: families, a page of one token, and the pads that it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import zmq

from app.tiny_models import tiny_model
from router.pads import pad_values
from sightline_types import KeyScheme
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, Seen, check_lengths, check_no_false_credit
from tests.engines.service import INTRODUCTION, QUESTION, image_part, messages

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]

#: Family and page size: each family once, and a page of one token.
KINDS = (("qwen3_vl", 1), ("qwen2_5_vl", 16), ("qwen2_vl", 16))
SIZES = ((64, 64), (200, 200), (333, 127), (42, 70), (80, 48), (1200, 20), (30, 600), (640, 480), (1081, 723))
FIRST_PAD = 1_000_000


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-page{kind[1]}"
)
async def bench(request: pytest.FixtureRequest, models: Path) -> AsyncIterator[Bench]:
    kind, page = request.param
    bench = Bench(str(tiny_model(kind, models)), engine="sglang", page_size=page)
    await bench.start()
    yield bench
    await bench.stop()


def picture(seed: int, size: tuple[int, int] = make.SIZE) -> dict[str, Any]:
    return image_part(make.data_url(make.png(seed, size)))


async def ask_twice(bench: Bench, turns: list[dict[str, Any]]) -> Seen:
    """The repeat is foretold, its pictures included, and is not 0 = 0."""
    await bench.ask(turns)
    again = await bench.ask(turns)
    assert again.predicted_cached == again.cached_tokens, (again.predicted_cached, again.cached_tokens)
    assert again.overlap * bench.contract.block_size >= 6 * 32
    assert again.media_overlap == again.media_blocks > 0
    return again


async def test_the_worker_says_that_the_family_is_exact(bench: Bench) -> None:
    layouts = bench.contract.layouts
    assert layouts and all(layout.exact for layout in layouts), layouts
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
        for payload in replayed(source.replay_endpoint)
        for event in msgspec.msgpack.decode(payload)[1]
        for token in event.get("token_ids", ())
    ]
    (span,) = seen.prompt.view.spans
    expected = pad_values(bench.contract.scheme, span.media_id)
    pads = [token for token in published if token in expected]
    page = bench.contract.block_size
    num_stored = min(span.end, seen.prompt_tokens // page * page) - span.offset
    assert pads == [expected[i % len(expected)] for i in range(num_stored)]


def replayed(endpoint: str) -> list[bytes]:
    """The engine's whole event buffer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        payloads = []
        while socket.poll(10_000):
            *_, seq, payload = socket.recv_multipart()
            if seq == b"\xff" * 8:
                return payloads
            payloads.append(payload)
    raise AssertionError("the engine's replay did not end")


async def test_after_a_flush_nothing_is_foretold(bench: Bench) -> None:
    turns = messages(picture(53), QUESTION)
    await ask_twice(bench, turns)
    await bench.wait_idle()
    assert await bench.engine.reset_prefix_cache()
    bench.relay.clear()
    await asyncio.sleep(0.05)  # the relay is not idle any more, and the next push says so
    await bench.wait_idle()
    seen = await bench.ask(turns)
    assert seen.predicted_cached == seen.cached_tokens == 0

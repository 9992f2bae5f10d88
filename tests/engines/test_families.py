"""Every family that the engine can build tiny: predicted length and overlap against the engine itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_lengths, check_no_false_credit, check_repeat
from tests.engines.service import INTRODUCTION, QUESTION, image_part, messages
from tests.engines.tiny_families import FAMILIES, family_folder, loading
from tests.engines.tiny_weightless import WEIGHTLESS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", *FAMILIES, *WEIGHTLESS)
SIZES = ((64, 64), (200, 200), (333, 127), (42, 70), (80, 48), (1200, 20), (30, 600), (640, 480), (1081, 723))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def bench(request: pytest.FixtureRequest, models: Path) -> AsyncIterator[Bench]:
    bench = Bench(str(family_folder(request.param, models)), **loading(request.param))
    await bench.start()
    yield bench
    await bench.stop()


def picture(seed: int, size: tuple[int, int] = make.SIZE) -> dict[str, Any]:
    return image_part(make.data_url(make.png(seed, size)))


async def test_the_worker_says_that_the_family_is_exact(bench: Bench) -> None:
    assert bench.contract.layouts
    assert all(layout.exact for layout in bench.contract.layouts), bench.contract.layouts


async def test_prompt_lengths_are_the_engines(bench: Bench) -> None:
    for number, size in enumerate(SIZES):
        seen = await check_lengths(bench, messages(picture(number, size), "What?"))
        assert seen.prompt.is_exact


async def test_a_repeat_is_foretold_exactly(bench: Bench) -> None:
    await check_repeat(bench, messages(picture(50), QUESTION))


async def test_another_picture_earns_nothing_from_its_twin(bench: Bench) -> None:
    await check_no_false_credit(bench, messages(picture(51), QUESTION), messages(picture(52), QUESTION))


async def test_several_pictures_of_several_sizes_are_placed_exactly(bench: Bench) -> None:
    parts = [picture(60, (352, 320)), "and", picture(61, (200, 200)), picture(62, (333, 127)), QUESTION]
    await check_repeat(bench, messages(*parts, system=INTRODUCTION + "Compare."))


async def test_after_a_flush_nothing_is_foretold(bench: Bench) -> None:
    turns = messages(picture(53), QUESTION)
    await check_repeat(bench, turns)
    await bench.flush()
    seen = await bench.ask(turns)
    assert seen.predicted_cached == seen.cached_tokens == 0

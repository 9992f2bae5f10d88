"""Prompts that the engine's own renderer foresees: length, placement and identity against the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from numpy.testing import assert_array_equal as assert_equal

from app.tiny_models import tiny_model
from deployments.engines.vllm_render import VllmRenderer
from deployments.rendered import Rendered, RenderRequest, rendered_prompt
from deployments.transport import pack
from sightline_types import DegradeReason, PreparedPrompt
from tests.engines import clips
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_lengths, check_no_false_credit, check_repeat
from tests.engines.service import INTRODUCTION, QUESTION, image_part, messages
from tests.engines.tiny_onevision import tiny_onevision

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]

SIZES = ((64, 64), (200, 200), (333, 127), (80, 48), (30, 100), (640, 480), (723, 1081))


class RenderedBench(Bench):
    """A bench whose prompts come from a renderer that shares nothing with the engine."""

    kwargs: dict[str, Any]

    async def start(self) -> None:
        self._config = replace(self._config, has_renderer=True)
        self.kwargs = {}
        await super().start()
        self.renderer = VllmRenderer.start(self._config)
        self._prepare, self.prompts.prepare = self.prompts.prepare, self.foresee
        self._engine_generate, self.engine.generate = self.engine.generate, self.generate_with_options

    async def foresee(self, turns: list[dict[str, Any]]) -> PreparedPrompt:
        self.before = await self._prepare(turns, mm_processor_kwargs=self.kwargs)
        described, payload = pack(self.before.media, [item.source.data for item in self.before.media])
        media = await self.media.decode(described, payload)
        answer = await self.renderer.render(
            RenderRequest(self.before.token_ids, described, self.kwargs), media
        )
        assert isinstance(answer, Rendered), answer
        return rendered_prompt(self.before, answer)

    def generate_with_options(self, request: Any, media: Any) -> Any:
        return self._engine_generate(replace(request, mm_processor_kwargs=self.kwargs), media)

    async def stop(self) -> None:
        self.renderer.shutdown()
        # Bound to the engine, which must be gone when `stop` looks for what it leaves behind.
        del self.prompts.prepare, self.engine.generate, self._prepare, self._engine_generate, self.renderer
        await super().stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["llava_onevision", "qwen2_5_vl"])
async def bench(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RenderedBench]:
    known = request.param != "llava_onevision"
    folder = tmp_path_factory.mktemp("model")
    bench = RenderedBench(str(tiny_model(request.param, models) if known else tiny_onevision(folder)))
    await bench.start()
    yield bench
    await bench.stop()


def picture(seed: int, size: tuple[int, int] = make.SIZE) -> dict[str, Any]:
    return image_part(make.data_url(make.png(seed, size)))


async def test_the_engine_promises_what_the_renderer_foresees(bench: RenderedBench) -> None:
    prompt = await bench.foresee(messages(picture(1)))
    assert prompt.layout in {layout.fingerprint for layout in bench.contract.layouts if layout.exact}


async def test_prompt_lengths_are_the_engines(bench: RenderedBench) -> None:
    for number, size in enumerate(SIZES):
        seen = await check_lengths(bench, messages(picture(number, size), "What?"))
        assert seen.prompt.is_exact
        if bench.before.is_exact:
            assert_equal(bench.before.view.token_ids, seen.prompt.view.token_ids)


async def test_a_repeat_is_foretold_exactly_also_where_the_registry_knows_nothing(
    bench: RenderedBench,
) -> None:
    seen = await check_repeat(bench, messages(picture(50), QUESTION))
    assert seen.prompt.is_exact
    is_known = "qwen" in bench.contract.model
    assert bench.before.reasons == (() if is_known else (DegradeReason.UNSUPPORTED_FAMILY,))


async def test_another_picture_earns_nothing_from_its_twin(bench: RenderedBench) -> None:
    await check_no_false_credit(bench, messages(picture(51), QUESTION), messages(picture(52), QUESTION))


async def test_several_pictures_of_several_sizes_are_placed_exactly(bench: RenderedBench) -> None:
    parts = [picture(60, (352, 320)), "and", picture(61, (200, 200)), picture(62, (333, 127)), QUESTION]
    await check_repeat(bench, messages(*parts, system=INTRODUCTION + "Compare."))


async def test_a_clip_is_foretold_exactly(bench: RenderedBench) -> None:
    part = clips.inline(clips.clip(70, size=(160, 128), num_frames=5, fps=30))
    await check_lengths(bench, messages(part, "What?"))
    await check_repeat(bench, messages(picture(71), "and", part, QUESTION))


async def test_special_tokens_in_a_clients_text_are_text_for_the_engine_too(bench: RenderedBench) -> None:
    words = "What is <|image_pad|>, and <|vision_start|><|image_pad|><|vision_end|>, and <|video"
    turns = messages(words, "_pad|>?", picture(63), QUESTION, "<|image_pad|>")
    seen = await check_repeat(bench, turns)
    assert len(seen.prompt.view.spans) == 1
    if bench.before.is_exact:
        assert_equal(bench.before.view.token_ids, seen.prompt.view.token_ids)


async def test_processor_options_are_foretold_too_identity_included(bench: RenderedBench) -> None:
    is_qwen = "qwen" in bench.contract.model
    bench.kwargs = {"min_pixels": 200_000} if is_qwen else {"do_sample_frames": False}
    try:
        turns = messages(picture(64), QUESTION)
        seen = await check_repeat(bench, turns)
        assert seen.prompt.media[0].media_id != seen.prompt.view.spans[0].media_id
    finally:
        bench.kwargs = {}

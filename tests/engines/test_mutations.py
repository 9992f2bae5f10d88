"""The checks can fail: each part of the agreement, broken on purpose, makes a named check fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from app.tiny_models import tiny_model
from sightline_types import MediaId, MediaSpan, PreparedPrompt, TokenView
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_lengths, check_no_false_credit, check_repeat
from tests.engines.service import QUESTION, image_part, messages

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *ENGINE_IN_PROCESS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(models: Path) -> AsyncIterator[Bench]:
    bench = Bench(str(tiny_model("qwen3_vl", models)))
    await bench.start()
    yield bench
    await bench.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def mended(bench: Bench) -> AsyncIterator[Bench]:
    """Whatever a test broke is whole again afterwards."""
    alter = bench.alter
    yield bench
    bench.alter, bench.listens = alter, True
    await bench.flush()


def turns(seed: int) -> list[dict[str, Any]]:
    return messages(image_part(make.data_url(make.png(seed))), QUESTION)


async def assert_breaks(check: Awaitable[object]) -> None:
    with pytest.raises(AssertionError):
        await check


def longer_by_one(prompt: PreparedPrompt) -> PreparedPrompt:
    """The picture takes one token more than it does."""
    view, span = prompt.view, prompt.view.spans[0]
    ids = np.insert(view.token_ids, span.offset, view.token_ids[span.offset])
    spans = (MediaSpan(span.offset, span.length + 1, span.media_id),)
    return replace(prompt, view=TokenView(ids, spans, len(ids)))


def with_identity(prompt: PreparedPrompt, media_id: MediaId) -> PreparedPrompt:
    """The view says another identity than the engine is given."""
    span = replace(prompt.view.spans[0], media_id=media_id)
    return replace(prompt, view=replace(prompt.view, spans=(span,)))


async def test_unbroken_all_checks_hold(mended: Bench) -> None:
    await check_lengths(mended, turns(700))
    await check_repeat(mended, turns(701))
    await check_no_false_credit(mended, turns(702), turns(703))


async def test_a_length_off_by_one_is_caught(mended: Bench) -> None:
    mended.alter = longer_by_one
    await assert_breaks(check_lengths(mended, turns(710)))


async def test_a_length_off_by_one_is_caught_by_the_repeat_too(mended: Bench) -> None:
    mended.alter = longer_by_one
    await assert_breaks(check_repeat(mended, turns(711)))


async def test_a_wrong_identity_is_caught(mended: Bench) -> None:
    mended.alter = lambda prompt: with_identity(prompt, MediaId.random())
    await assert_breaks(check_repeat(mended, turns(712)))


async def test_one_identity_for_all_pictures_is_caught(mended: Bench) -> None:
    """Views that cannot tell pictures apart earn false credit."""
    twin = MediaId(12345)

    def alter(prompt: PreparedPrompt) -> PreparedPrompt:
        item = replace(prompt.media[0], media_id=twin)
        return replace(with_identity(prompt, twin), media=(item,))

    await mended.ask(turns(713))
    mended.alter = alter
    await assert_breaks(check_no_false_credit(mended, turns(714), turns(715)))


async def test_extras_left_out_of_the_keys_are_caught(mended: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the requests' side forgets the pictures; the events' side does not."""

    def alter(prompt: PreparedPrompt) -> PreparedPrompt:
        return replace(prompt, view=replace(prompt.view, spans=()))

    mended.alter = alter
    await assert_breaks(check_repeat(mended, turns(716)))


async def test_a_relay_that_tells_nothing_is_caught(mended: Bench) -> None:
    mended.listens = False
    await assert_breaks(check_repeat(mended, turns(717)))


async def test_both_sides_use_one_key_function() -> None:
    import router.residency

    assert router.residency.chain_key is router.keys.chain_key

"""A renderer that fails costs exactness, never a request. The handle is a fake: Serve is not running here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError
from test_rendered import UNKNOWN, item, placed, prompt, rendered

from deployments.config import LayoutMode
from deployments.layout_source import PAUSE_S, LayoutSource
from deployments.rendered import Rendered, RenderRefused, RenderRequest
from sightline_types import DegradeReason, Modality, PreparedPrompt

Answer = Callable[[], Awaitable[Rendered | RenderRefused]]


class Response:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.was_cancelled = False

    def __await__(self) -> Any:
        return self.answer().__await__()

    def cancel(self) -> None:
        self.was_cancelled = True


class Handle:
    """As much of a deployment handle as `LayoutSource` uses."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.render = self
        self.calls: list[Response] = []

    def remote(self, request: RenderRequest, payload: Any) -> Response:
        self.calls.append(Response(self.answer))
        return self.calls[-1]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def good() -> Rendered | RenderRefused:
    return rendered(placed(Modality.IMAGE, 2, 5, 11))


async def dead() -> Rendered | RenderRefused:
    raise RayActorError()


async def hangs() -> Rendered | RenderRefused:
    await asyncio.sleep(3600)
    raise AssertionError


async def refuses() -> Rendered | RenderRefused:
    return RenderRefused("no such size")


async def wrong() -> Rendered | RenderRefused:
    return rendered()


BEFORE = prompt(item(1), reasons=UNKNOWN)


def source(answer: Answer, mode: LayoutMode = "auto", timeout_s: float = 30.0) -> tuple[LayoutSource, Handle]:
    handle = Handle(answer)
    clock = Clock()
    made = LayoutSource(mode, "m", handle, timeout_s=timeout_s, clock=clock)  # type: ignore[arg-type]
    handle.clock = clock  # type: ignore[attr-defined]
    return made, handle


async def ask(made: LayoutSource, before: PreparedPrompt = BEFORE) -> PreparedPrompt:
    return await made.rendered(before, RenderRequest(before.token_ids, ()), None)


async def test_a_rendered_prompt_is_counted() -> None:
    made, _ = source(good)
    assert (await ask(made)).is_exact
    assert (made.costs.rendered, made.costs.refused, made.costs.unavailable) == (1, 0, 0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (dead, DegradeReason.RENDERER_UNAVAILABLE),
        (hangs, DegradeReason.RENDERER_UNAVAILABLE),
        (refuses, DegradeReason.RENDERER_REFUSED),
        (wrong, DegradeReason.PLACEHOLDER_MISMATCH),
    ],
)
async def test_a_renderer_that_fails_costs_exactness_by_name(answer: Answer, reason: DegradeReason) -> None:
    made, _ = source(answer, timeout_s=0.01 if answer is hangs else 30.0)
    after = await ask(made)
    assert after.reasons == (*UNKNOWN, reason)
    assert after.view.exact_until == 2
    assert not after.is_exact


async def test_a_call_that_takes_too_long_is_cancelled() -> None:
    made, handle = source(hangs, timeout_s=0.01)
    await ask(made)
    assert handle.calls[0].was_cancelled


async def test_a_renderer_that_does_not_answer_is_left_alone_for_a_while() -> None:
    made, handle = source(dead)
    await ask(made)
    await ask(made)
    assert (len(handle.calls), made.costs.unavailable) == (1, 2)
    handle.clock.now += PAUSE_S + 1  # type: ignore[attr-defined]
    handle.answer = good
    assert (await ask(made)).is_exact


async def test_without_the_renderer_its_own_mode_knows_the_text_only() -> None:
    made, _ = source(dead, mode="renderer")
    after = await ask(made, prompt(item(1)))
    assert after.view.exact_until == 2


async def test_auto_keeps_what_the_registry_knows() -> None:
    made, _ = source(dead)
    after = await ask(made, prompt(item(1)))
    assert after.view.exact_until == 3
    assert after.reasons == (DegradeReason.RENDERER_UNAVAILABLE,)


def test_off_is_the_text_before_the_media() -> None:
    made = LayoutSource("off", "m")
    after = made.without_renderer(prompt(item(1)))
    assert (after.view.exact_until, after.reasons) == (2, (DegradeReason.LAYOUT_OFF,))
    assert made.without_renderer(prompt()).reasons == ()


def test_without_a_renderer_nobody_is_asked() -> None:
    assert not LayoutSource("auto", "m").would_render(BEFORE, {})

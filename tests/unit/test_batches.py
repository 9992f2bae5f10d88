"""What a replica sends at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.batches import pack_messages, together, unpack_messages
from deployments.protocol import (
    Delta,
    EngineMessage,
    Failed,
    Finished,
    NotHeld,
    Refused,
    Started,
    TokenLogprob,
)
from sightline_types import WorkerId

START, END = Started(WorkerId("a", 1)), Finished("stop", 10, 3, 0)
#: Nothing is ready before its time comes; "at once" in a test that must not depend on it.
LONG_S = 60.0

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ints = st.integers(0, 2**31)
logprobs = st.builds(
    TokenLogprob,
    texts,
    ints,
    st.floats(-1e3, 0),
    st.lists(st.tuples(texts, ints, st.floats(-9, 0))).map(tuple),
)
deltas = st.builds(Delta, texts, st.lists(ints).map(tuple), st.lists(logprobs, max_size=2).map(tuple))
messages_of_all_kinds = st.one_of(
    st.builds(Started, st.builds(WorkerId, texts, st.integers(0, 64))),
    deltas,
    st.builds(
        Finished,
        texts,
        ints,
        ints,
        ints,
        st.one_of(st.none(), ints, texts),
        st.lists(ints).map(tuple),
    ),
    st.builds(Failed, texts, ints, st.none() | texts, st.none() | texts),
    st.builds(Refused, texts, st.none() | st.builds(WorkerId, texts)),
    st.builds(NotHeld, st.booleans()),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(messages_of_all_kinds))
def test_packed_messages_come_out_as_they_went_in(messages: list[EngineMessage]) -> None:
    assert unpack_messages(pack_messages(messages)) == messages


async def scripted(*steps: Any) -> AsyncGenerator[EngineMessage]:
    """An event is waited for, an exception raised, anything else sent."""
    for step in steps:
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, Exception):
            raise step
        else:
            yield step


async def batches_of(*steps: Any, hold_s: float = LONG_S, pause_s: float = 0.0) -> list[tuple[Any, ...]]:
    return [batch async for batch in together(scripted(*steps), hold_s=hold_s, pause_s=pause_s)]


async def test_what_is_ready_goes_at_once() -> None:
    assert await batches_of(START, Delta("a", (1,)), END) == [(START, Delta("a", (1,)), END)]


async def test_deltas_that_wait_are_merged() -> None:
    entry = TokenLogprob("b", 2, -1.0)
    (batch,) = await batches_of(START, Delta("a", (1,)), Delta("b", (2,), (entry,)), END)
    assert batch == (START, Delta("ab", (1, 2), (entry,)), END)


async def test_a_start_waits_for_the_first_token_a_moment_only() -> None:
    token = asyncio.Event()
    stream = together(scripted(START, token, Delta("a", (1,)), END), hold_s=0.001, pause_s=0.0)
    assert await anext(stream) == (START,)
    token.set()
    assert await anext(stream) == (Delta("a", (1,)), END)
    await stream.aclose()


async def test_a_start_goes_with_a_first_token_that_comes_soon() -> None:
    token = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, token.set)
    stream = together(scripted(START, token, Delta("a", (1,)), asyncio.Event()), hold_s=LONG_S, pause_s=0.0)
    assert await anext(stream) == (START, Delta("a", (1,)))
    await stream.aclose()


async def test_the_first_token_does_not_wait_for_the_second() -> None:
    stream = together(scripted(START, Delta("a", (1,)), asyncio.Event()), hold_s=LONG_S, pause_s=LONG_S)
    assert await anext(stream) == (START, Delta("a", (1,)))
    await stream.aclose()


async def test_what_came_before_an_error_is_sent_before_it_is_raised() -> None:
    failing, error = asyncio.Event(), RuntimeError("gone")
    stream = together(scripted(START, Delta("a", (1,)), failing, error), hold_s=LONG_S, pause_s=0.0)
    assert await anext(stream) == (START, Delta("a", (1,)))
    failing.set()
    with pytest.raises(RuntimeError, match="gone"):
        await anext(stream)


async def test_closing_ends_the_messages_where_they_wait() -> None:
    ended = []

    async def endless() -> AsyncGenerator[EngineMessage]:
        try:
            yield START
            yield Delta("a", (1,))
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with contextlib.aclosing(endless()) as messages:
        stream = together(messages, hold_s=LONG_S, pause_s=0.0)
        await anext(stream)
        await stream.aclose()
    assert ended == [True]

"""How a relay ends: promptly, completely, and at any moment; and a publisher that ends before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from event_publisher import block, publisher

from router import subscription
from router.relay import EventRelay
from router.subscription import EventSource
from sightline_types import (
    DecisionId,
    KeyScheme,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

GENEROUS_S = 20.0
STARTED = LifecycleEvent(LifecycleKind.STARTED, DecisionId("r1"))

Push = Callable[[WorkerPush], Awaitable[PushReply]]


class Taker:
    """An actor that takes everything."""

    def __init__(self) -> None:
        self.taken: list[WorkerPush] = []

    async def push(self, message: WorkerPush) -> PushReply:
        self.taken.append(message)
        return PushReply(1, message.seq)


def make_relay(push: Push, source: EventSource | None = None, heartbeat_s: float = 0.0005) -> EventRelay:
    contract = WorkerContract("vllm", "0.32.0", 4, KeyScheme.VLLM, "tiny", 4096)
    return EventRelay(
        WorkerId("replica"), contract, source, push, push_interval_s=0.0002, heartbeat_s=heartbeat_s
    )


def other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


async def ticks(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("moment", range(8))
async def test_a_relay_ends_however_far_its_waiting_task_has_come(moment: int) -> None:
    """A report ends the wait for the next heartbeat; cancelled in the very next turns, it must still end."""
    taker = Taker()
    relay = make_relay(taker.push, heartbeat_s=3600.0)
    await relay.start()
    await ticks(3)
    relay.report(STARTED)
    await ticks(moment)
    async with asyncio.timeout(GENEROUS_S):
        await relay.close()
    assert not other_tasks()


async def test_starting_and_closing_in_quick_succession_leaves_nothing_behind() -> None:
    async with asyncio.timeout(GENEROUS_S):
        for cycle in range(50):
            relay = make_relay(Taker().push)
            await relay.start()
            await asyncio.sleep(cycle * 0.0001)  # over several heartbeats' length
            await relay.close()
            assert not other_tasks()


async def test_a_relay_ends_while_its_engine_does_not_answer() -> None:
    async with publisher() as engine:
        engine.replaying.clear()
        relay = make_relay(Taker().push, engine.source)
        starting = asyncio.create_task(relay.start())
        async with asyncio.timeout(GENEROUS_S):
            while not engine.replay_requests:
                await asyncio.sleep(0.001)
            starting.cancel()
            await asyncio.wait({starting})
            await relay.close()


async def test_a_push_that_hangs_does_not_keep_a_relay_from_ending() -> None:
    hangs = asyncio.Event()

    async def push(message: WorkerPush) -> PushReply:
        if message.seq:
            hangs.set()
            await asyncio.Event().wait()
        return PushReply(1, message.seq)

    relay = make_relay(push)
    await relay.start()
    async with asyncio.timeout(GENEROUS_S):
        await hangs.wait()
        await relay.close()
    assert not other_tasks()


async def test_a_cancelled_close_is_told_so_and_has_closed_everything() -> None:
    async with publisher() as engine:
        before = other_tasks()
        relay = make_relay(Taker().push, engine.source)
        await relay.start()
        closing = asyncio.create_task(relay.close())
        await ticks(1)
        closing.cancel()
        async with asyncio.timeout(GENEROUS_S):
            with pytest.raises(asyncio.CancelledError):
                await closing
            while other_tasks() - before:
                await asyncio.sleep(0)


async def test_a_relay_may_be_closed_twice_and_before_it_has_started() -> None:
    async with publisher() as engine:
        relay = make_relay(Taker().push, engine.source)
        await relay.close()
        await relay.close()


async def test_nothing_is_pushed_after_the_farewell() -> None:
    taker = Taker()
    async with publisher() as engine:
        relay = make_relay(taker.push, engine.source)
        await relay.start()
        await engine.joined()
        await relay.leave()
        told = len(taker.taken)
        await engine.publish(block(1))
        while relay.status.engine_seq < 0:  # it still follows its engine
            await asyncio.sleep(0.001)
        relay.report(STARTED)
        await asyncio.sleep(0.01)  # twenty heartbeats
        await relay.close()
    assert len(taker.taken) == told
    assert [message.leaving for message in taker.taken] == [False] * (told - 1) + [True]


async def test_the_farewell_of_a_relay_that_was_pushing_comes_last_and_takes_its_reports_along() -> None:
    taken: list[WorkerPush] = []
    hangs = asyncio.Event()

    async def push(message: WorkerPush) -> PushReply:
        if message.lifecycle and not message.leaving:
            hangs.set()
            await asyncio.Event().wait()
        taken.append(message)
        return PushReply(1, message.seq)

    relay = make_relay(push)
    await relay.start()
    relay.report(STARTED)
    async with asyncio.timeout(GENEROUS_S):
        await hangs.wait()
        await relay.leave()
    await relay.close()
    assert taken[-1].leaving and taken[-1].table and taken[-1].lifecycle == (STARTED,)


async def test_a_worker_without_events_sends_neither_keys_nor_progress() -> None:
    taker = Taker()
    relay = make_relay(taker.push)
    await relay.start()
    relay.report(STARTED)
    async with asyncio.timeout(GENEROUS_S):
        while len(taker.taken) < 5:
            await asyncio.sleep(0.001)
    await relay.close()
    assert taker.taken[0].contract is not None and taker.taken[0].table
    assert {message.deltas for message in taker.taken} == {()}
    assert {message.relay.engine_seq for message in taker.taken} == {-1}
    assert [event for message in taker.taken for event in message.lifecycle] == [STARTED]


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(GENEROUS_S):
        while not done():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("missed", [0, 2])
async def test_another_publisher_on_the_same_ports_begins_anew(
    missed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscriber joins a new publisher late: what it missed is replayed from the new one's beginning."""
    monkeypatch.setattr(subscription, "QUIET_S", 3600.0)
    taker = Taker()
    async with publisher() as first:
        source = first.source
        relay = make_relay(taker.push, source)
        await relay.start()
        await first.joined()
        for number in range(1, 5):
            await first.publish(block(number))
        await until(lambda: relay.status.engine_seq == 3)
    old_epoch = taker.taken[-1].epoch
    async with publisher(at=source) as second:
        for number in range(missed):
            await second.publish(block(10 + number), live=False)
        await second.joined()
        await second.publish(block(20))
        await until(lambda: taker.taken[-1].epoch != old_epoch)
        await until(lambda: taker.taken[-1].relay.engine_seq == missed)
        await relay.close()
    begun = [message for message in taker.taken if message.epoch != old_epoch]
    keys = sum(len(delta.stored) // 8 for message in begun for delta in message.deltas)
    assert begun[0].table and begun[0].seq == 0 and keys == missed + 1
    assert not begun[-1].relay.partial

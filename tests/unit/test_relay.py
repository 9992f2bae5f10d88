"""The event relay between a real ZMQ publisher and an actor that keeps the channel's rules."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from event_publisher import CLEARED, EventPublisher, block, publisher, removed

from router import channel, confirmation, subscription, trust
from router import relay as relay_module
from router.keys import chain_key, root_key
from router.relay import EventRelay
from router.subscription import EventSource
from sightline_types import (
    DecisionId,
    EngineLoad,
    KeyScheme,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

WORKER = WorkerId("replica")
CONTRACT = WorkerContract("vllm", "0.32.0", 4, KeyScheme.VLLM, "tiny", 4096)
GENEROUS_S = 30.0
A_LONG_TIME_S = 3600.0


def key(*numbers: int) -> int:
    """The key of the last of a chain of `block`s."""
    made = root_key(KeyScheme.VLLM)
    for number in numbers:
        made = chain_key(made, np.arange(number * 4, number * 4 + 4), ())
    return made


def life(kind: str, request: str = "r1") -> LifecycleEvent:
    return LifecycleEvent(LifecycleKind(kind), DecisionId(request))


class ActorAway(Exception):
    pass


class Actor:
    """Keeps one worker's keys by the rules of the channel: epochs, sequence, tables."""

    def __init__(self) -> None:
        self.epoch = 1
        self.is_away = False
        self.pushes: list[WorkerPush] = []
        self.attempts: list[WorkerPush] = []
        self.keys: set[int] = set()
        self.lifecycle: list[LifecycleEvent] = []
        self.forgotten = False
        self.in_flight = 0
        self._at: tuple[int, int] | None = None
        self._changed = asyncio.Condition()

    def forget_all(self) -> None:
        """As a restarted actor has."""
        self.epoch += 1
        self._at = None
        self.keys = set()

    def lose_track(self) -> None:
        """As after a message that never came."""
        self._at = None

    async def push(self, message: WorkerPush) -> PushReply:
        assert self.in_flight == 0, "one message at a time"
        self.in_flight += 1
        try:
            await asyncio.sleep(0)
            self.attempts.append(message)
            if self.is_away:
                raise ActorAway
            return self._take(message)
        finally:
            self.in_flight -= 1
            async with self._changed:
                self._changed.notify_all()

    def _take(self, message: WorkerPush) -> PushReply:
        follows = self._at == (message.epoch, message.seq - 1)
        if not message.table and not follows:
            return PushReply(self.epoch, -1, "table")
        if message.table:
            assert message.contract == CONTRACT
            self.keys = set()
        self._at = (message.epoch, message.seq)
        for delta in message.deltas:
            self.keys |= set(np.frombuffer(delta.stored, "<u8").tolist())
            self.keys -= set(np.frombuffer(delta.removed, "<u8").tolist())
        self.lifecycle.extend(message.lifecycle)
        self.forgotten |= message.leaving
        self.pushes.append(message)
        return PushReply(self.epoch, message.seq)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(GENEROUS_S), self._changed:
            await self._changed.wait_for(done)

    async def until_followed(self, seq: int) -> WorkerPush:
        """Until the engine's batch `seq` is part of what was taken."""
        await self.until(lambda: bool(self.pushes) and self.last.relay.engine_seq >= seq)
        return self.last

    @property
    def last(self) -> WorkerPush:
        return self.pushes[-1]


@asynccontextmanager
async def relaying(actor: Actor, source: EventSource | None, **options: Any) -> AsyncIterator[EventRelay]:
    # Never idle unless a test says so: what asks the engine whether there is more would be one more replay.
    usual = {"push_interval_s": 0.001, "settle_s": A_LONG_TIME_S}
    relay = EventRelay(WORKER, CONTRACT, source, actor.push, **(usual | options))
    await relay.start()
    try:
        yield relay
    finally:
        await relay.close()


@asynccontextmanager
async def following(
    buffer: int = 1000, **options: Any
) -> AsyncIterator[tuple[EventPublisher, Actor, EventRelay]]:
    """A publisher, an actor, and a relay between them that has joined."""
    actor = Actor()
    async with publisher(buffer) as engine, relaying(actor, engine.source, **options) as relay:
        await engine.joined()
        yield engine, actor, relay


@pytest.fixture(autouse=True)
def no_checks_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each replay has its one cause, however slow the machine."""
    monkeypatch.setattr(subscription, "QUIET_S", A_LONG_TIME_S)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "BACKOFF_S", (0.005, 0.02))


# The way from the engine


async def test_the_first_message_registers_with_a_table_of_what_is_held() -> None:
    actor = Actor()
    async with publisher() as engine:
        await engine.publish(block(1), block(2, 1))  # before anyone has subscribed
        async with relaying(actor, engine.source, epoch=7):
            first = actor.pushes[0]
    assert (first.epoch, first.seq, first.table, first.contract) == (7, 0, True, CONTRACT)
    assert actor.keys == {key(1), key(1, 2)}
    assert first.relay.replayed_batches == 1 and not first.relay.partial


async def test_later_messages_carry_the_net_change() -> None:
    async with following() as (engine, actor, _):
        await actor.until_followed(await engine.publish(block(1), block(2, 1)))
        message = await actor.until_followed(await engine.publish(removed([2]), block(3)))
        assert not message.table and message.contract is None
        assert actor.keys == {key(1), key(3)}
        await actor.until_followed(await engine.publish(CLEARED))
        assert actor.keys == set()
        assert {m.epoch for m in actor.pushes} == {actor.pushes[0].epoch}
        assert [m.seq for m in actor.pushes] == list(range(len(actor.pushes)))


async def test_a_batch_lost_on_the_way_is_replayed_in_its_place() -> None:
    async with following() as (engine, actor, relay):
        await actor.until_followed(await engine.publish(block(1)))
        await engine.publish(removed([1]), block(2), live=False)
        last = await engine.publish(block(3, 2))
        await actor.until_followed(last)
        assert engine.replay_requests == [0, 1]
        assert actor.keys == {key(2), key(2, 3)}
        assert relay.status.replayed_batches >= 1 and not relay.status.partial


async def test_live_batches_wait_while_a_gap_is_closed() -> None:
    async with following() as (engine, actor, _):
        engine.replaying.clear()
        await engine.publish(block(1), live=False)
        await engine.publish(removed([1]))
        last = await engine.publish(block(1), block(2, 1))
        while len(engine.replay_requests) < 2:
            await asyncio.sleep(0)
        assert actor.keys == set()
        engine.replaying.set()
        await actor.until_followed(last)
        assert actor.keys == {key(1), key(1, 2)}


async def test_a_gap_beyond_the_replay_buffer_begins_a_partial_epoch() -> None:
    told: list[str] = []
    async with following(buffer=2, on_lost=told.append) as (engine, actor, _):
        await actor.until_followed(await engine.publish(block(1)))
        for number in (2, 3, 4):
            await engine.publish(block(number), live=False)
        message = await actor.until_followed(await engine.publish(block(5)))
        assert message.relay.partial
        assert message.epoch != actor.pushes[0].epoch
        first = next(push for push in actor.pushes if push.epoch == message.epoch)
        assert first.table and first.seq == 0
        # Block 1 may have been evicted in the gap: it is promised no more.
        assert actor.keys == {key(4), key(5)}
        assert len(told) == 1


async def test_an_emptied_cache_is_known_whole_again() -> None:
    async with following(buffer=1) as (engine, actor, _):
        await engine.publish(block(1), live=False)
        message = await actor.until_followed(await engine.publish(block(2)))
        assert message.relay.partial
        whole = await actor.until_followed(await engine.publish(CLEARED, block(3)))
        assert not whole.relay.partial and whole.table and whole.epoch != message.epoch
        assert actor.keys == {key(3)}


async def test_a_batch_that_comes_twice_counts_once() -> None:
    async with following() as (engine, actor, _):
        seq = await engine.publish(block(1))
        await engine.send_again(seq)
        await engine.publish(block(2))
        await engine.send_again(seq)
        await actor.until_followed(await engine.publish(removed([1])))
        assert actor.keys == {key(2)}
        assert len({m.epoch for m in actor.pushes}) == 1


async def test_an_engine_that_begins_anew_begins_a_new_epoch() -> None:
    async with following() as (engine, actor, relay):
        for number in (1, 2, 3):
            last = await engine.publish(block(number))
        before = await actor.until_followed(last)
        engine.restart()
        await engine.publish(block(4))
        await actor.until(lambda: actor.last.epoch != before.epoch and key(4) in actor.keys)
        assert actor.keys == {key(4)}
        assert relay.status.engine_seq == 0 and not relay.status.partial


async def test_an_unreadable_batch_is_asked_for_once_and_then_given_up() -> None:
    async with following() as (engine, actor, _):
        await actor.until_followed(await engine.publish(block(1)))
        bad = await engine.publish_raw(b"\xc1 not msgpack")
        message = await actor.until_followed(await engine.publish(block(2)))
        assert engine.replay_requests.count(bad) == 1
        assert message.relay.partial and message.relay.undecodable_events == 1
        assert actor.keys == {key(2)}


async def test_an_unknown_event_is_counted_and_passed_over() -> None:
    async with following() as (engine, actor, _):
        message = await actor.until_followed(await engine.publish({"type": "BlockMoved"}, block(1)))
        assert message.relay.undecodable_events == 1 and not message.relay.partial
        assert actor.keys == {key(1)}


async def test_a_cache_emptied_by_command_is_empty_at_once() -> None:
    async with following() as (engine, actor, relay):
        await actor.until_followed(await engine.publish(block(1)))
        relay.clear()
        await actor.until(lambda: not actor.keys)


# The way to the actor


async def test_an_actor_that_comes_back_gets_a_table_and_all_that_was_reported(quick_retries: None) -> None:
    async with following() as (engine, actor, relay):
        await actor.until_followed(await engine.publish(block(1), block(2)))
        actor.is_away = True
        relay.report(life("started"))
        seen = len(actor.attempts)
        last = await engine.publish(removed([2]), block(3))
        relay.report(life("first_token"))
        await actor.until(lambda: len(actor.attempts) > seen + 3)
        relay.report(life("end"))
        assert not actor.lifecycle
        missed, actor.is_away = len(actor.attempts), False
        await actor.until(lambda: len(actor.lifecycle) == 3)
        message = await actor.until_followed(last)
        assert actor.attempts[missed].table
        assert actor.lifecycle == [life("started"), life("first_token"), life("end")]
        assert actor.keys == {key(1), key(3)}
        assert message.epoch == actor.pushes[0].epoch


async def test_what_is_reported_during_a_failing_push_comes_after_what_it_carried(
    quick_retries: None,
) -> None:
    actor = Actor()

    async def fail_at_first(message: WorkerPush) -> PushReply:
        if message.lifecycle == (life("started"),):
            relay.report(life("end"))
            raise ActorAway
        return await actor.push(message)

    relay = EventRelay(WORKER, CONTRACT, None, fail_at_first)
    relay.report(life("started"))
    await relay.start()
    await actor.until(lambda: len(actor.lifecycle) == 2)
    await relay.close()
    assert actor.lifecycle == [life("started"), life("end")]


async def test_an_epoch_that_began_during_a_push_still_needs_its_table() -> None:
    state = channel.Channel(epoch=1)
    message = WorkerPush(WORKER, state.epoch, state.take_seq(), table=True, contract=CONTRACT)
    state.begin_epoch()
    assert state.settle(message, PushReply(1, 0))
    assert state.needs_table and (state.epoch, state.take_seq()) == (2, 0)


async def test_nobody_to_register_with_does_not_keep_a_relay_from_starting(quick_retries: None) -> None:
    actor = Actor()
    actor.is_away = True
    async with relaying(actor, None):
        await actor.until(lambda: len(actor.attempts) >= 3)
        actor.is_away = False
        await actor.until(lambda: bool(actor.pushes))
        assert actor.last.table and actor.last.contract == CONTRACT


async def test_a_push_that_is_not_answered_in_time_has_failed(
    monkeypatch: pytest.MonkeyPatch, quick_retries: None
) -> None:
    monkeypatch.setattr(relay_module, "PUSH_TIMEOUT_S", 0.01)
    actor, answered = Actor(), asyncio.Event()

    async def hang_at_first(message: WorkerPush) -> PushReply:
        if not answered.is_set():
            answered.set()
            await asyncio.Event().wait()
        return await actor.push(message)

    relay = EventRelay(WORKER, CONTRACT, None, hang_at_first)
    relay.report(life("started"))
    await relay.start()
    await actor.until(lambda: actor.lifecycle == [life("started")])
    await relay.close()
    assert actor.pushes[0].seq > 0 and actor.pushes[0].table


async def test_need_table_is_answered_with_a_table_in_the_same_epoch() -> None:
    async with following() as (engine, actor, relay):
        await actor.until_followed(await engine.publish(block(1)))
        actor.keys = set()
        actor.lose_track()
        relay.report(life("started"))
        await actor.until(lambda: actor.lifecycle == [life("started")])
        assert actor.last.table and actor.keys == {key(1)}
        assert actor.last.epoch == actor.pushes[0].epoch


async def test_a_new_actor_gets_a_table() -> None:
    async with following() as (engine, actor, _):
        await actor.until_followed(await engine.publish(block(1)))
        actor.forget_all()
        await actor.until(lambda: actor.keys == {key(1)})
        assert actor.last.table


async def test_a_new_actor_that_asks_for_nothing_gets_a_table_all_the_same() -> None:
    async with following() as (engine, actor, relay):
        await actor.until_followed(await engine.publish(block(1)))
        tables = sum(m.table for m in actor.pushes)
        actor.epoch += 1
        relay.report(life("started"))
        await actor.until(lambda: sum(m.table for m in actor.pushes) == tables + 1)


async def test_lifecycle_that_nobody_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_PENDING", 3)
    actor = Actor()
    relay = EventRelay(WORKER, CONTRACT, None, actor.push)
    for number in range(5):
        relay.report(life("started", f"r{number}"))
    assert relay.dropped_lifecycle_events == 2
    await relay.start()
    await relay.close()
    assert [event.decision_id for event in actor.lifecycle] == ["r2", "r3", "r4"]


async def test_reports_from_another_thread_arrive_in_order() -> None:
    actor = Actor()
    async with relaying(actor, None) as relay:
        events = [life("started"), life("first_token"), life("end")]
        thread = threading.Thread(target=lambda: [relay.report_threadsafe(event) for event in events])
        thread.start()
        await actor.until(lambda: len(actor.lifecycle) == 3)
        thread.join()
        assert actor.lifecycle == events


async def test_the_pause_between_pushes_begins_with_the_answer() -> None:
    """So that an actor that is slow to answer is told less often."""
    now = 100.0

    class SlowActor(Actor):
        async def push(self, message: WorkerPush) -> PushReply:
            nonlocal now
            now += 10.0
            return await super().push(message)

    actor = SlowActor()
    async with relaying(actor, None, clock=lambda: now) as relay:
        relay.report(life("started"))
        await asyncio.sleep(0.02)
        pushes = len(actor.pushes)
        relay.report(life("first_token"))
        await asyncio.sleep(0.02)
        assert len(actor.pushes) == pushes  # no time has passed since the last answer
        now += 1.0
        await actor.until(lambda: len(actor.lifecycle) == 2)


async def test_every_message_says_how_the_engine_is() -> None:
    load = EngineLoad(1, 2, 0.5)
    actor = Actor()
    async with relaying(actor, None, load=lambda: load):
        assert actor.last.load == load


# Idle and heartbeats


async def test_idle_is_told_at_once_and_not_with_the_next_heartbeat() -> None:
    async with following(heartbeat_s=A_LONG_TIME_S, settle_s=0.01) as (_, actor, relay):
        await actor.until(lambda: actor.last.relay.idle)
        relay.report(life("started"))
        await actor.until(lambda: not actor.last.relay.idle)
        relay.report(life("end"))
        await actor.until(lambda: actor.last.relay.idle)
        assert actor.lifecycle[-1].kind is LifecycleKind.END


@pytest.mark.parametrize("end", ["end", "abort"])
async def test_a_worker_with_a_running_request_is_never_idle(end: str) -> None:
    now = 0.0
    relay = EventRelay(WORKER, CONTRACT, None, Actor().push, clock=lambda: now, settle_s=0.1)
    relay.report(life("started", "a"))
    relay.report(life("started", "b"))
    relay.report(life(end, "a"))
    now = 100.0
    assert not relay.status.idle
    relay.report(life(end, "b"))
    assert not relay.status.idle
    now = 100.2
    assert relay.status.idle


async def test_the_idle_message_holds_everything_that_was_published() -> None:
    async with following(heartbeat_s=A_LONG_TIME_S, settle_s=0.02) as (engine, actor, _):
        seq = await engine.publish(block(1))
        await actor.until_followed(seq)
        await actor.until(lambda: actor.last.relay.idle)
        assert actor.last.relay.engine_seq == seq and actor.keys == {key(1)}


async def test_a_worker_whose_relay_is_behind_is_not_idle() -> None:
    async with following(heartbeat_s=A_LONG_TIME_S, settle_s=0.01) as (engine, actor, relay):
        await actor.until(lambda: actor.last.relay.idle)
        engine.replaying.clear()
        asked = len(engine.replay_requests)
        await engine.publish(block(1), live=False)
        await engine.publish(block(2))
        while len(engine.replay_requests) == asked:
            await asyncio.sleep(0)
        assert not relay.status.idle
        engine.replaying.set()
        await actor.until(lambda: actor.last.relay.idle and actor.keys == {key(1), key(2)})


async def test_a_worker_is_not_idle_before_everything_that_its_engine_published_was_heard() -> None:
    """However long the last batch takes: engine and relay may both have to wait for a busy machine."""
    async with following(heartbeat_s=A_LONG_TIME_S, settle_s=0.002) as (engine, actor, relay):
        await actor.until(lambda: actor.last.relay.idle)
        relay.report(life("started"))
        late = await engine.publish(block(1), live=False)
        relay.report(life("end"))
        asked = len(engine.replay_requests)
        while len(engine.replay_requests) < asked + 3:
            await asyncio.sleep(0.001)
        assert not relay.status.idle and not actor.last.relay.idle
        await engine.send_again(late)
        await actor.until(lambda: actor.last.relay.idle)
        assert actor.keys == {key(1)}


async def test_a_worker_whose_engine_does_not_say_whether_there_is_more_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirmation, "REPLAY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(confirmation, "RETRY_S", 0.001)
    async with following(heartbeat_s=A_LONG_TIME_S, settle_s=0.002) as (engine, actor, relay):
        await actor.until(lambda: actor.last.relay.idle)
        engine.replaying.clear()
        relay.report(life("started"))
        relay.report(life("end"))
        asked = len(engine.replay_requests)
        while len(engine.replay_requests) == asked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert not relay.status.idle
        engine.replaying.set()
        await actor.until(lambda: actor.last.relay.idle)


async def test_an_engine_without_a_replay_is_idle_after_its_silence() -> None:
    actor = Actor()
    async with publisher() as engine:
        source = engine.source._replace(replay_endpoint=None)
        async with relaying(actor, source, heartbeat_s=A_LONG_TIME_S, settle_s=0.01) as relay:
            relay.report(life("started"))
            relay.report(life("end"))
            await actor.until(lambda: actor.last.relay.idle)


async def test_a_batch_without_net_change_is_told_as_followed() -> None:
    async with following(heartbeat_s=A_LONG_TIME_S, settle_s=A_LONG_TIME_S) as (engine, actor, _):
        await actor.until_followed(await engine.publish(block(1)))
        message = await actor.until_followed(await engine.publish(block(1)))
        assert message.deltas == ()


async def test_a_silent_worker_sends_heartbeats() -> None:
    actor = Actor()
    async with relaying(actor, None, heartbeat_s=0.005):
        await actor.until(lambda: len(actor.pushes) >= 5)
        assert not any(m.table or m.deltas or m.lifecycle for m in actor.pushes[1:])
        assert len({m.epoch for m in actor.pushes}) == 1


# The end


async def test_leaving_takes_along_what_is_still_to_be_told() -> None:
    actor = Actor()
    async with relaying(actor, None, push_interval_s=A_LONG_TIME_S) as relay:
        relay.report(life("abort"))
        await relay.leave()
        assert actor.forgotten and actor.last.leaving and actor.lifecycle == [life("abort")]
        told = len(actor.attempts)
        relay.report(life("started"))
        await relay.leave()
        assert len(actor.attempts) == told


async def test_leaving_an_absent_actor_does_not_fail() -> None:
    actor = Actor()
    async with relaying(actor, None) as relay:
        actor.is_away = True
        await relay.leave()
        assert actor.attempts[-1].leaving and not actor.forgotten


async def test_a_relay_that_is_closed_pushes_no_more() -> None:
    async with following(heartbeat_s=0.001) as (engine, actor, relay):
        await relay.close()
        told = len(actor.attempts)
        await engine.publish(block(1))
        await asyncio.sleep(0.01)
        assert len(actor.attempts) == told


async def test_a_stream_of_garbage_is_not_believed_until_it_has_been_readable_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust, "GARBAGE_BATCHES", 2)
    monkeypatch.setattr(trust, "CLEAN_BATCHES", 3)
    async with following() as (engine, actor, relay):
        for number in (1, 2):
            await engine.publish_raw(b"\xc1 not msgpack")
            message = await actor.until_followed(await engine.publish(block(number)))
        assert message.relay.distrusted == "batch 2 cannot be read" and message.relay.partial
        assert actor.keys == set()
        message = await actor.until_followed(await engine.publish(block(3)))
        assert actor.keys == set() and relay.status.distrusted
        message = await actor.until_followed(await engine.publish(block(4)))
        assert actor.keys == {key(4)}
        assert not message.relay.distrusted and message.relay.partial

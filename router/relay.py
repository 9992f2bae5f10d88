"""The event relay, inside the engine's replica: one worker's ordered channel to the router actor.

It turns the engine's KV events into keys here, so that the actor never hashes, and sends only the net
change, together with what the replica reports of its requests. Whatever goes wrong on the way ends in
one of two moves, both of which begin from a full table:

    the actor lacks something (a failed push, a new actor, `need == "table"`)   a table push
    we lack something (events lost, the engine began anew)                      a new epoch

When events are lost for good, everything known of the engine is forgotten, rather than some of it kept
that may be gone: a partial epoch understates, and never promises a block that was evicted unseen.
An engine that publishes garbage again and again is not believed at all until it has been readable for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from router import keys
from router.channel import SETTLE_S, Channel, LifecycleQueue
from router.confirmation import Confirmation
from router.events import AllCleared, EventBatch
from router.residency import Residency
from router.subscription import EventSource, EventSubscription
from router.trust import StreamTrust
from sightline_types import (
    DecisionId,
    EngineLoad,
    LifecycleEvent,
    PushReply,
    RelayStatus,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

__all__ = ["EventRelay", "EventSource"]

log = logging.getLogger("sightline.relay")

#: The longest wait for the engine's first replay; what comes later is taken as it comes.
CATCH_UP_TIMEOUT_S = 10.0
PUSH_TIMEOUT_S = 2.0
LEAVE_TIMEOUT_S = 1.0


def no_load() -> EngineLoad | None:
    return None


class EventRelay:
    """Follows one engine and reports it to the router actor.

    Everything runs in the event loop that `start` was called in.

    source: None for a worker that publishes no events: heartbeats and lifecycle only.
    push: sends one message to the actor, wherever that is now; whatever it raises is a failed push.
    settle_s: how long no event and no report must have come for the relay to be idle; after half of it the
        engine is asked whether it has published more.
    renewal_s: between two lists of the requests that run here; the bookings' lease must be longer.
    load: what the engine says of itself, asked at each push; must not raise.
    on_lost: told why, when events were lost for good.
    """

    def __init__(
        self,
        worker: WorkerId,
        contract: WorkerContract,
        source: EventSource | None,
        push: Callable[[WorkerPush], Awaitable[PushReply]],
        *,
        push_interval_s: float = 0.03,
        heartbeat_s: float = 0.5,
        settle_s: float = SETTLE_S,
        renewal_s: float = 15.0,
        load: Callable[[], EngineLoad | None] = no_load,
        clock: Callable[[], float] = time.monotonic,
        epoch: int | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._worker = worker
        self._contract = contract
        self._push = push
        self._push_interval_s = push_interval_s
        self._heartbeat_s = heartbeat_s
        self._settle_s = settle_s
        self._renewal_s = renewal_s
        self._next_renewal = clock()
        self._load = load
        self._clock = clock
        self._on_lost = on_lost
        self._residency = Residency(
            contract.spec, counts=not contract.scheme.has_pads, groups=contract.kv_groups
        )
        self._wake = asyncio.Event()
        self._subscription = self._subscribe(source)
        self._confirmation = self._confirm()
        self._trust = StreamTrust()
        self._is_partial = False
        self._lifecycle = LifecycleQueue()
        self._channel = Channel(secrets.randbits(62) if epoch is None else epoch)
        self._last_change = self._last_push = clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._follower: asyncio.Task[None] | None = None
        self._confirmer: asyncio.Task[None] | None = None
        self._pusher: asyncio.Task[None] | None = None

    def _subscribe(self, source: EventSource | None) -> EventSubscription | None:
        if source is None:
            return None
        return EventSubscription(
            source,
            on_batch=self._take_batch,
            on_lost=self._lose,
            on_garbage=partial(self._lose, garbage=True),
            on_restart=self._restart,
            on_caught_up=self._changed,
            # Between two pushes once is enough; and all must be taken long before the relay is idle.
            gather_s=min(self._push_interval_s, self._settle_s / 4),
        )

    def _confirm(self) -> Confirmation | None:
        if self._subscription is None:
            return None
        return Confirmation(self._subscription, self._settle_s / 2, on_sure=self._wake.set)

    async def start(self) -> None:
        """Catch up with the engine, and register with the actor; does not fail where there is none yet."""
        self._loop = asyncio.get_running_loop()
        if self._subscription is not None and self._confirmation is not None:
            await self._loop.run_in_executor(None, keys.warm_up)  # not at the first event, in this loop
            self._follower = _spawn(self._subscription.run())
            self._confirmer = _spawn(self._confirmation.run())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                    await self._subscription.caught_up.wait()
        await self._push_once(PUSH_TIMEOUT_S)
        self._pusher = _spawn(self._push_for_ever())

    def report(self, event: LifecycleEvent) -> None:
        """Send `event` with the next push. For callers in the relay's event loop."""
        self._lifecycle.add(event)
        self._changed()

    def report_threadsafe(self, event: LifecycleEvent) -> None:
        """`report` for callers in another thread, after `start`."""
        assert self._loop is not None, "the relay has not started"
        self._loop.call_soon_threadsafe(self.report, event)

    async def leave(self) -> None:
        """Tell the actor to forget this worker. Best effort, within a second; nothing is pushed after."""
        if self._channel.has_left:
            return
        self._channel.has_left = True
        await _cancel(self._pusher)
        await self._push_once(LEAVE_TIMEOUT_S)

    async def close(self) -> None:
        """Stop, without a word to the actor."""
        self._channel.has_left = True
        try:
            await _cancel(self._pusher, self._follower, self._confirmer)
        finally:
            if self._subscription is not None:
                self._subscription.close()

    def clear(self) -> None:
        """The engine's cache was emptied by command: vLLM 0.32 says so only with its next step."""
        self._residency.apply(AllCleared())
        self._changed()

    @property
    def status(self) -> RelayStatus:
        if self._subscription is None:
            dropped = self._lifecycle.num_dropped
            return RelayStatus(idle=self._is_idle, dropped_lifecycle_events=dropped)
        followed = self._subscription.status
        return RelayStatus(
            engine_seq=followed.next_seq - 1,
            idle=self._is_idle,
            partial=self._is_partial,
            distrusted=self._trust.reason,
            replayed_batches=followed.replayed_batches,
            undecodable_events=followed.undecodable_batches + self._residency.faults.unknown_events,
            dropped_lifecycle_events=self._lifecycle.num_dropped,
        )

    @property
    def num_running(self) -> int:
        """Requests that were reported as started and not as over."""
        return len(self._lifecycle.running)

    @property
    def dropped_lifecycle_events(self) -> int:
        return self._lifecycle.num_dropped

    @property
    def _is_idle(self) -> bool:
        return self._is_quiet and self._clock() - self._last_change >= self._settle_s

    @property
    def _is_quiet(self) -> bool:
        """Nothing runs and nothing is on its way: idle, once the settle time is over."""
        is_behind = self._subscription is not None and self._subscription.status.catching_up
        is_sure = self._confirmation is None or self._confirmation.is_sure
        return not self._lifecycle.running and not is_behind and is_sure

    def _changed(self) -> None:
        self._last_change = self._clock()
        # What runs will be over: that is when the engine is worth asking.
        if self._confirmation is not None and not self._lifecycle.running:
            self._confirmation.doubt()
        self._wake.set()

    def _take_batch(self, batch: EventBatch) -> None:
        if self._trust.note_clean():
            self._begin_epoch(partial=True)
        if self._trust.is_trusted:
            self._apply(batch)
        self._changed()

    def _apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            self._residency.apply(event)
            if self._is_partial and isinstance(event, AllCleared):
                self._begin_epoch(partial=False)  # an empty cache is known whole

    def _lose(self, why: str, *, garbage: bool = False) -> None:
        if garbage:
            self._trust.note_garbage(why)
        log.warning("worker %s: KV events lost: %s", self._worker, why)
        self._begin_epoch(partial=True)
        if self._on_lost is not None:
            self._on_lost(why)

    def _restart(self) -> None:
        log.warning("worker %s: its engine publishes from the beginning again", self._worker)
        self._begin_epoch(partial=False)

    def _begin_epoch(self, *, partial: bool) -> None:
        self._residency.reset()
        self._is_partial = partial
        self._channel.begin_epoch()
        self._changed()

    async def _push_for_ever(self) -> None:
        while True:
            self._wake.clear()
            wait_s = self._due() - self._clock()
            if wait_s <= 0:
                await self._push_once(PUSH_TIMEOUT_S)
                continue
            if self._has_news:
                await asyncio.sleep(wait_s)  # more news make it due no sooner
                continue
            # Not `wait_for`: in Python 3.11 it can swallow the cancellation that ends this task.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _due(self) -> float:
        """When to push next, by the clock."""
        if self._channel.num_failures:
            return self._last_push + self._channel.backoff_s
        soon = self._last_push + self._push_interval_s
        if self._has_news:
            return soon
        due = self._last_push + self._heartbeat_s
        if self._is_quiet and not self._channel.sent.idle:
            due = min(due, max(soon, self._last_change + self._settle_s))
        return due

    @property
    def _has_news(self) -> bool:
        followed = self._subscription.status.next_seq - 1 if self._subscription is not None else -1
        return (
            self._channel.needs_table
            or bool(self._lifecycle.pending)
            or self._residency.has_changes
            or followed != self._channel.sent.engine_seq
        )

    async def _push_once(self, timeout_s: float) -> None:
        """Send one message. Never raises: what was not taken is sent again, from a table."""
        message = self._message()
        reply: PushReply | None = None
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._push(message)
        except Exception as error:  # whatever the transport raises: the actor is away, and comes back
            log.debug("worker %s: push %d failed: %r", self._worker, message.seq, error)
        finally:
            # The pause begins with the answer: a busy actor is told less often.
            self._last_push = self._clock()
            self._settle(message, reply)

    def _message(self) -> WorkerPush:
        table = self._channel.needs_table
        changes = self._residency.drain()
        return WorkerPush(
            self._worker,
            self._channel.epoch,
            self._channel.take_seq(),
            deltas=self._residency.table() if table else changes,
            lifecycle=self._lifecycle.take(),
            relay=self.status,
            load=self._load(),
            table=table,
            contract=self._contract if table else None,
            leaving=self._channel.has_left,
            running=self._running(),
        )

    def _running(self) -> tuple[DecisionId, ...] | None:
        """What runs here, now and then, so that its bookings live on."""
        now = self._clock()
        if now < self._next_renewal:
            return None
        self._next_renewal = now + self._renewal_s
        return tuple(self._lifecycle.running)

    def _settle(self, message: WorkerPush, reply: PushReply | None) -> None:
        if not self._channel.settle(message, reply):
            self._lifecycle.put_back(message.lifecycle)


def _spawn(endless: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(endless)
    task.add_done_callback(_report_death)
    return task


def _report_death(task: asyncio.Task[None]) -> None:
    """Without its tasks a relay is silent, and the actor forgets the worker: the log must say why."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the event relay stopped", exc_info=task.exception())


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    """End tasks, and wait for their ends. A caller that is cancelled meanwhile is told so."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)

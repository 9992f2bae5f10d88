"""A simulated worker's channel to the router: what its relay gathers, when it sends, and what gets lost.

The order, the tables and the repeats are those of `router.channel`, which the real relay uses; here is only
what the real relay leaves to asyncio and the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from router.channel import SETTLE_S, Channel, LifecycleQueue
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
from simulation.event_queue import EventQueue
from simulation.events import Event
from simulation.held_keys import HeldKeys

__all__ = ["Link", "Uplink"]

_SETTLE_MS = SETTLE_S * 1e3


@dataclass(frozen=True, slots=True)
class Link:
    """push: what the router does with a message. Milliseconds: between two messages with news, between two
    without, between two lists of what runs, and on the way. loss: share of messages that never arrive (the
    relay hears nothing, either)."""

    push: Callable[[WorkerPush], PushReply]
    interval_ms: float
    heartbeat_ms: float
    renewal_ms: float
    delay_ms: float
    loss: float
    random: Random


class Uplink:
    """load: of the engine, asked at each message."""

    def __init__(
        self, worker: WorkerId, contract: WorkerContract, queue: EventQueue, link: Link,
        load: Callable[[], EngineLoad],
    ) -> None:  # fmt: skip
        self.worker = worker
        self.held = HeldKeys()
        self._contract = contract
        self._queue = queue
        self._link = link
        self._load = load
        self._lifecycle = LifecycleQueue()
        self._channel = Channel(epoch=1)
        self._is_closed = False
        self._is_under_way = False
        self._planned_ms = float("inf")
        self._last_push_ms = float("-inf")
        self._last_change_ms = queue.now_ms
        self._next_renewal_ms = queue.now_ms + link.renewal_ms
        self._plan()

    def report(self, event: LifecycleEvent) -> None:
        self._lifecycle.add(event)
        self._changed()

    def note(self, events: Iterable[Event]) -> None:
        """What the engine published."""
        self.held.apply(events)
        self._changed()

    def leave(self) -> None:
        """Tell the router to send no more. Requests that run go on, and are not told of any more."""
        self._channel.has_left = True
        self._send()
        self._is_closed = True

    def close(self) -> None:
        """The worker died, without a word."""
        self._is_closed = True

    def _changed(self) -> None:
        self._last_change_ms = self._queue.now_ms
        self._plan()

    def _plan(self) -> None:
        if self._is_closed or self._is_under_way:
            return
        due_ms = self._due_ms()
        if due_ms < self._planned_ms:
            self._planned_ms = due_ms
            self._queue.at(due_ms, self._on_time, due_ms)

    def _due_ms(self) -> float:
        if self._channel.num_failures:
            return self._last_push_ms + self._channel.backoff_s * 1e3
        if self._channel.needs_table or self._lifecycle.pending or self.held.has_changes:
            return max(self._queue.now_ms, self._last_push_ms + self._link.interval_ms)
        due_ms = self._last_push_ms + self._link.heartbeat_ms
        if not self._lifecycle.running and not self._channel.sent.idle:
            due_ms = min(due_ms, max(self._queue.now_ms, self._last_change_ms + _SETTLE_MS))
        return due_ms

    def _on_time(self, planned_ms: float) -> None:
        if self._is_closed or self._is_under_way or planned_ms != self._planned_ms:
            return  # an earlier plan took its place
        self._planned_ms = float("inf")
        self._send()

    def _send(self) -> None:
        message = self._message()
        self._last_push_ms = self._queue.now_ms
        self._is_under_way = True
        delay_ms = self._link.delay_ms
        if self._link.loss and self._link.random.random() < self._link.loss:
            self._queue.after(delay_ms, self._settle, message, None)
        elif delay_ms:
            self._queue.after(delay_ms, self._arrive, message)
        else:
            self._arrive(message)

    def _arrive(self, message: WorkerPush) -> None:
        self._settle(message, self._link.push(message))

    def _settle(self, message: WorkerPush, reply: PushReply | None) -> None:
        if not self._channel.settle(message, reply):
            self._lifecycle.put_back(message.lifecycle)
        self._is_under_way = False
        self._plan()

    def _message(self) -> WorkerPush:
        table, changes = self._channel.needs_table, self.held.drain()
        return WorkerPush(
            self.worker,
            self._channel.epoch,
            self._channel.take_seq(),
            deltas=self.held.table() if table else changes,
            lifecycle=self._lifecycle.take(),
            relay=RelayStatus(idle=self._is_idle()),
            load=self._load(),
            table=table,
            contract=self._contract if table else None,
            leaving=self._channel.has_left,
            running=self._running(),
        )

    def _is_idle(self) -> bool:
        # The sum that `_due_ms` waits for: a difference could round to less, and be due for ever.
        is_settled = self._queue.now_ms >= self._last_change_ms + _SETTLE_MS
        return is_settled and not self._lifecycle.running

    def _running(self) -> tuple[DecisionId, ...] | None:
        if self._queue.now_ms < self._next_renewal_ms:
            return None
        self._next_renewal_ms = self._queue.now_ms + self._link.renewal_ms
        return tuple(sorted(self._lifecycle.running))

"""What a relay keeps of its channel to the router actor: the messages' order, and what is not taken yet."""

from __future__ import annotations

from collections import deque

from sightline_types import (
    DecisionId,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    RelayStatus,
    WorkerPush,
)

__all__ = ["SETTLE_S", "Channel", "LifecycleQueue"]

#: How long no event and no report must have come for a relay to be idle.
SETTLE_S = 0.2
#: Lifecycle events that wait for the actor at most; then the oldest are dropped, and counted.
MAX_PENDING = 100_000
BACKOFF_S = (0.1, 1.0)  # after the first failed push, and at most

_OVER = (LifecycleKind.END, LifecycleKind.ABORT)


class LifecycleQueue:
    """What the replica reported and the actor has not taken yet, in order; and which requests run."""

    def __init__(self) -> None:
        self.pending: deque[LifecycleEvent] = deque()
        self.running: set[DecisionId] = set()
        self.num_dropped = 0

    def add(self, event: LifecycleEvent) -> None:
        if event.kind is LifecycleKind.STARTED:
            self.running.add(event.decision_id)
        elif event.kind in _OVER:
            self.running.discard(event.decision_id)
        self.pending.append(event)
        self._drop_oldest()

    def take(self) -> tuple[LifecycleEvent, ...]:
        taken = tuple(self.pending)
        self.pending.clear()
        return taken

    def put_back(self, events: tuple[LifecycleEvent, ...]) -> None:
        self.pending.extendleft(reversed(events))
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self.pending) > MAX_PENDING:
            self.pending.popleft()
            self.num_dropped += 1


class Channel:
    """Where the ordered channel to the actor stands.

    sent: the status that the actor took last. num_failures: failed pushes in a row.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.needs_table = True
        self.has_left = False
        self.num_failures = 0
        self.sent = RelayStatus()
        self._next_seq = 0
        self._actor_epoch: int | None = None

    @property
    def backoff_s(self) -> float:
        first, most = BACKOFF_S
        return min(most, first * 2.0 ** min(self.num_failures - 1, 10))

    def begin_epoch(self) -> None:
        self.epoch += 1
        self._next_seq = 0
        self.needs_table = True

    def take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def settle(self, message: WorkerPush, reply: PushReply | None) -> bool:
        """Note the answer (None: none came). Returns whether the actor took the message."""
        if reply is None:
            self.num_failures += 1
            self.needs_table = True
            return False
        is_new_actor = reply.actor_epoch != self._actor_epoch
        self._actor_epoch = reply.actor_epoch
        lacks = reply.need == "table"
        # A table that was not enough is a failure: sent at the push interval, it would be a flood.
        self.num_failures = self.num_failures + 1 if message.table and lacks else 0
        if lacks or (is_new_actor and not message.table):
            self.needs_table = True
        elif message.epoch == self.epoch and message.table:
            self.needs_table = False
        self.sent = message.relay
        return not lacks or reply.applied_seq >= message.seq

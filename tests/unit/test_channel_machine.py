"""Relays, a network that loses, doubles and delays, and routers that die: against a record of every message.

What the router holds of a worker is at every moment what that worker held when it sent the message that
the router says it has applied. And once the network is kind again, it is what the worker holds now.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router import RouterConfig, RouterCore
from router.channel import Channel
from router.snapshot import read_snapshot, write_snapshot
from sightline_types import KeyScheme, PushReply, Tier, TierDelta, WorkerContract, WorkerId, WorkerPush

WORKERS = [WorkerId(name) for name in "abc"]
CONTRACT = WorkerContract("vllm", "0", 4, KeyScheme.VLLM, "m", 99)
KEYS = st.sets(st.integers(1, 9), max_size=5)
GARBAGE = (TierDelta(Tier(), b"x"), TierDelta(Tier(), bytes(8)), TierDelta(Tier(-1), b""))


@dataclass
class Relay:
    """The real channel, around a set of keys. sent: what was held at each message."""

    worker: WorkerId
    channel: Channel
    held: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    sent: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    outstanding: WorkerPush | None = None

    def message(self, *, leaving: bool = False) -> WorkerPush:
        table = self.channel.needs_table
        stored, removed = self.held - self.told, self.told - self.held
        delta = (
            TierDelta(Tier(), packed(self.held))
            if table
            else TierDelta(Tier(), packed(stored), packed(removed))
        )
        self.told = set(self.held)
        message = WorkerPush(
            self.worker,
            self.channel.epoch,
            self.channel.take_seq(),
            (delta,),
            table=table,
            contract=CONTRACT if table else None,
            leaving=leaving,
        )
        self.sent[message.epoch, message.seq] = frozenset(self.held)
        return message

    def settle(self, reply: PushReply | None) -> None:
        assert self.outstanding is not None
        self.channel.settle(self.outstanding, reply)
        self.outstanding = None


def packed(keys: set[int] | frozenset[int]) -> bytes:
    return np.array(sorted(keys), "<u8").tobytes()


class ChannelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lives = 0
        self.now = 0.0
        self.path = Path(tempfile.mkdtemp(prefix="sl-machine-")) / "view"
        self.relays = {w: Relay(w, Channel(1 << 40 | n << 30)) for n, w in enumerate(WORKERS)}
        self.network: list[WorkerPush] = []
        self.departed: set[WorkerId] = set()
        self.distrusted: dict[WorkerId, int] = {}
        self.begin_router()

    def begin_router(self) -> None:
        self.lives += 1
        self.reached: dict[WorkerId, tuple[int, int]] = {}
        self.core = RouterCore(
            RouterConfig(), clock=lambda: self.now, epoch=self.lives, random=Random(self.lives)
        )

    # What workers do

    @rule(worker=st.sampled_from(WORKERS), held=KEYS)
    def change(self, worker: WorkerId, held: set[int]) -> None:
        self.relays[worker].held = held

    @rule(worker=st.sampled_from(WORKERS), held=KEYS)
    def begin_epoch(self, worker: WorkerId, held: set[int]) -> None:
        """As after a loss beyond the engine's buffer."""
        relay = self.relays[worker]
        relay.held = held
        relay.told = set()
        relay.channel.begin_epoch()

    @rule(worker=st.sampled_from(WORKERS))
    def send(self, worker: WorkerId) -> None:
        relay = self.relays[worker]
        if relay.outstanding is None and worker not in self.departed:
            relay.outstanding = relay.message()
            self.network.append(relay.outstanding)

    @rule(worker=st.sampled_from(WORKERS), held=KEYS)
    def exchange(self, worker: WorkerId, held: set[int]) -> None:
        """A message that comes through at once, and may come again later."""
        relay = self.relays[worker]
        if relay.outstanding is None and worker not in self.departed:
            relay.held = held
            self.send(worker)
            assert relay.outstanding is not None
            relay.settle(self.deliver_to_core(relay.outstanding))

    @rule(worker=st.sampled_from(WORKERS), kind=st.sampled_from(GARBAGE))
    def send_garbage(self, worker: WorkerId, kind: TierDelta) -> None:
        """A message of its own epoch with a sound envelope and an unsound content."""
        relay = self.relays[worker]
        if relay.outstanding is None and worker not in self.departed:
            message = WorkerPush(worker, relay.channel.epoch, relay.channel.take_seq(), (kind,))
            relay.sent[message.epoch, message.seq] = frozenset()
            self.distrusted[worker] = message.epoch
            self.deliver_to_core(message)

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: WorkerId) -> None:
        relay = self.relays[worker]
        if relay.outstanding is None and worker not in self.departed:
            self.departed.add(worker)
            message = relay.message(leaving=True)
            self.network.append(message)
            self.deliver_to_core(message)

    # What the network does

    @precondition(lambda self: self.network)
    @rule(data=st.data(), is_answered=st.booleans())
    def deliver(self, data: st.DataObject, is_answered: bool) -> None:
        """Any message, new or old; it stays in the network and may come again."""
        message = data.draw(st.sampled_from(self.network))
        reply = self.deliver_to_core(message)
        relay = self.relays[message.worker]
        if relay.outstanding is message:
            relay.settle(reply if is_answered else None)

    @precondition(lambda self: any(r.outstanding for r in self.relays.values()))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        relay = data.draw(st.sampled_from([r for r in self.relays.values() if r.outstanding]))
        self.network.remove(relay.outstanding)
        relay.settle(None)

    # What routers do

    @rule(has_snapshot=st.booleans())
    def die(self, has_snapshot: bool) -> None:
        if has_snapshot:
            tables = (self.core.table_of(worker) for worker in WORKERS)
            write_snapshot(self.path, (table for table in tables if table is not None))
        self.begin_router()
        if has_snapshot:
            self.core.restore(read_snapshot(self.path))
        self.departed_anew()

    def departed_anew(self) -> None:
        """A new router does not know who left: the old messages of such a worker bring it back until it
        has been silent for long. Those workers are out of the game."""
        self.network = [message for message in self.network if message.worker not in self.departed]

    @rule(worker=st.sampled_from(WORKERS))
    def forget(self, worker: WorkerId) -> None:
        """As when Serve says that a replica is gone, while its messages are under way."""
        self.reached.pop(worker, None)
        self.core.forget(worker)

    def deliver_to_core(self, message: WorkerPush) -> PushReply:
        reply = self.core.push(message)
        self.core.check_integrity()
        return reply

    # What must hold

    @invariant()
    def what_is_held_is_what_was_sent(self) -> None:
        self.core.check_integrity()
        for status in self.core.workers():
            relay = self.relays[status.worker]
            at = (status.epoch, status.applied_seq)
            assert at >= self.reached.get(status.worker, at), "the view went back"
            self.reached[status.worker] = at
            held = frozenset(self.core.held_keys(status.worker).tolist())
            if not status.distrusted:
                assert held == relay.sent[status.epoch, status.applied_seq]
            else:
                assert not held

    @invariant()
    def who_has_left_stays_away(self) -> None:
        assert not self.departed & set(self.core.pool().contracts)

    @rule()
    def be_kind(self) -> None:
        """Every message arrives, in order and once, until nobody has anything to say."""
        for relay in self.relays.values():
            if relay.worker in self.departed:
                continue
            for _ in range(4):
                message = relay.outstanding or relay.message()
                relay.outstanding = message
                relay.settle(self.deliver_to_core(message))
            held = set(self.core.held_keys(relay.worker).tolist())
            is_believed = self.distrusted.get(relay.worker) != relay.channel.epoch
            if is_believed:
                assert held == relay.held


TestChannelMachine = ChannelMachine.TestCase
TestChannelMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=50)

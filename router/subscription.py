"""One engine's event stream, in order and without gaps as far as the engine can still tell.

The publisher's protocol (vLLM 0.32 `ZmqEventPublisher`, which SGLang follows):

    PUB     [topic, seq, payload]; seq is 8 bytes, big-endian, from 0, +1 a batch
    ROUTER  asked [b"", seq]: every buffered batch from seq on as [b"", topic, seq, payload] (older releases
            leave the topic out), then [b"", b"", -1, b""]. It answers between two batches.

A subscriber misses what is published before it has joined, and what overflows a queue. So the stream
begins with a replay from 0, a gap is closed by a replay from the missing batch (live batches wait in the
socket meanwhile), and a quiet stream is compared with the replay buffer from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple

import xxhash
import zmq.asyncio
from zmq.constants import SocketType
from zmq.error import ZMQError

from router.event_socket import EventSocket
from router.events import EventBatch, EventDecodeError, decode_batch

__all__ = ["EventSource", "EventSubscription", "SubscriptionStatus"]

log = logging.getLogger("sightline.relay")

#: Batches whose content is remembered, to tell one that came twice from one of another publisher.
REMEMBERED_BATCHES = 10_000
#: Live batches that may wait in the socket; vLLM's own high-water mark.
RECEIVE_HWM = 100_000
#: The longest wait for one message of a replay.
REPLAY_TIMEOUT_S = 5.0
#: After this much silence the replay buffer is asked for what may have been missed.
QUIET_S = 1.0
RETRY_S = 0.5
#: After what was there is taken: whatever wakes this process costs more than a batch.
GATHER_S = 0.01
#: Batches taken in a row before other tasks get a turn: a busy socket never makes its reader wait.
BATCHES_A_TURN = 32

END_SEQ = (1 << 64) - 1
_SEQ_BYTES = 8


class EventSource(NamedTuple):
    """Where an engine publishes. Endpoints to connect to; without a replay, gaps stay open."""

    endpoint: str
    replay_endpoint: str | None
    topic: str = ""


@dataclass(slots=True)
class SubscriptionStatus:
    """How far the stream was followed.

    next_seq: the batch expected next. catching_up: a replay is under way.
    """

    next_seq: int = 0
    catching_up: bool = False
    replayed_batches: int = 0
    undecodable_batches: int = 0


class EventSubscription:
    """Follows one publisher and hands its batches on, each once and in order.

    on_batch: a batch, the next one of the stream.
    on_lost: batches before the next one are lost, and what they said with them.
    on_garbage: the same, because a batch cannot be read.
    on_restart: the publisher began anew; the next batch is of the new one.
    on_caught_up: a replay that `status.catching_up` told of is over.
    gather_s: after a batch, how long the next ones are gathered before they are taken together.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        on_batch: Callable[[EventBatch], None],
        on_lost: Callable[[str], None],
        on_garbage: Callable[[str], None],
        on_restart: Callable[[], None],
        on_caught_up: Callable[[], None],
        gather_s: float = GATHER_S,
    ) -> None:
        self._source = source
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._on_garbage = on_garbage
        self._on_restart = on_restart
        self._on_caught_up = on_caught_up
        self._gather_s = gather_s
        self._context = zmq.asyncio.Context()
        self._dealer: zmq.asyncio.Socket | None = None
        self._digests: deque[int] = deque(maxlen=REMEMBERED_BATCHES)
        self._last_live = -1
        self._turn = 0
        self.status = SubscriptionStatus()
        self.caught_up = asyncio.Event()

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        while True:
            try:
                await self._follow()
            except ZMQError as error:
                log.warning("event stream %s: %s; subscribing again", self._source.endpoint, error)
                await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        """Close the sockets. `run` must have been cancelled."""
        self._context.destroy(linger=0)

    async def _follow(self) -> None:
        self._drop_dealer()
        live = EventSocket(self._context, self._source.endpoint, self._source.topic, RECEIVE_HWM)
        with contextlib.closing(live):
            await self._catch_up()
            self.caught_up.set()
            while True:
                frames = await live.receive(QUIET_S)
                if frames is None:
                    await self._replay()
                while frames is not None:
                    await self._receive(frames)
                    frames = live.take()
                await asyncio.sleep(self._gather_s)

    async def _receive(self, frames: list[bytes]) -> None:
        message = seq_and_payload(frames)
        if message is None:
            return
        await self._take_live(*message)
        self._last_live = message[0]
        await self._give_way()

    async def _take_live(self, seq: int, payload: bytes) -> None:
        if seq < self.status.next_seq:
            if self._is_old(seq, payload):
                return
            self._restart()
        if seq > self.status.next_seq:
            await self._catch_up()
        if seq < self.status.next_seq or self._offer(seq, payload):
            return
        await self._catch_up()  # garbled on the way? the replay may have it whole
        if seq >= self.status.next_seq:
            self._skip(seq, payload)

    def _is_old(self, seq: int, payload: bytes) -> bool:
        """Whether a batch before the expected one is of this publisher, and not of a new one.

        It is when it is the very batch that was taken (a batch's timestamp makes its content its own),
        or when it is of a lost stretch and live batches have not come that far.
        """
        age = self.status.next_seq - seq
        if age <= len(self._digests):
            return self._digests[-age] == xxhash.xxh3_64_intdigest(payload)
        return seq > self._last_live

    def _offer(self, seq: int, payload: bytes) -> bool:
        """Take a batch at or after the expected one. False: it cannot be read, and was not taken."""
        try:
            batch = decode_batch(payload)
        except EventDecodeError as error:
            log.debug("batch %d of %s: %s", seq, self._source.endpoint, error)
            return False
        if seq > self.status.next_seq:
            self._lose(seq, f"batches {self.status.next_seq} to {seq - 1} are in no replay buffer")
        self._digests.append(xxhash.xxh3_64_intdigest(payload))
        self.status.next_seq = seq + 1
        self._on_batch(batch)
        return True

    def _skip(self, seq: int, payload: bytes) -> None:
        self.status.undecodable_batches += 1
        self._drop_past(seq + 1)
        self._on_garbage(f"batch {seq} cannot be read")
        self._digests.append(xxhash.xxh3_64_intdigest(payload))

    def _lose(self, next_seq: int, why: str) -> None:
        self._drop_past(next_seq)
        self._on_lost(why)

    def _drop_past(self, next_seq: int) -> None:
        self._digests.clear()
        self.status.next_seq = next_seq

    def _restart(self) -> None:
        self._digests.clear()
        self.status.next_seq = 0
        self._on_restart()

    async def _catch_up(self) -> None:
        self.status.catching_up = True
        try:
            await self._replay()
        finally:
            self.status.catching_up = False
            self._on_caught_up()

    async def _replay(self) -> None:
        """Take what the publisher still has from the expected batch on."""
        while await self._replay_once():
            pass

    async def _replay_once(self) -> bool:
        """One question. Returns whether to ask again: batches came, but not all of them.

        A ROUTER socket drops what exceeds its high-water mark (1000 messages), so a long replay can have
        holes, or no end. Only batches missing at its beginning are lost for good.
        """
        has_begun = has_hole = False
        try:
            async for seq, payload in self._ask(self.status.next_seq):
                if seq < self.status.next_seq or has_hole:
                    continue
                has_hole = has_begun and seq > self.status.next_seq
                if not has_hole:
                    has_begun = True
                    self._take_replayed(seq, payload)
                    await self._give_way()
        except TimeoutError:
            self._drop_dealer()
            log.warning("replay from %s stalled for %.0f s", self._source.replay_endpoint, REPLAY_TIMEOUT_S)
            return has_begun
        return has_hole

    def _take_replayed(self, seq: int, payload: bytes) -> None:
        if self._offer(seq, payload):
            self.status.replayed_batches += 1
        else:
            self._skip(seq, payload)

    async def _ask(self, seq: int) -> AsyncIterator[tuple[int, bytes]]:
        if self._source.replay_endpoint is None:
            return
        self._dealer = dealer = self._dealer or self.connect_dealer()
        assert dealer is not None
        await dealer.send_multipart((b"", seq.to_bytes(8, "big")))
        while True:
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                frames = await dealer.recv_multipart()
            message = seq_and_payload(frames)
            if message is not None and message[0] == END_SEQ:
                return
            if message is not None:
                yield message

    def connect_dealer(self) -> zmq.asyncio.Socket | None:
        """A new socket to the publisher's replay, closed by `close`; None where there is no replay."""
        if self._source.replay_endpoint is None:
            return None
        dealer = self._context.socket(SocketType.DEALER)
        dealer.set_hwm(0)
        dealer.linger = 0
        dealer.connect(self._source.replay_endpoint)
        return dealer

    def _drop_dealer(self) -> None:
        """Late answers to an abandoned question must not be taken for those to the next."""
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None

    async def _give_way(self) -> None:
        self._turn = (self._turn + 1) % BATCHES_A_TURN
        if self._turn == 0:
            await asyncio.sleep(0)


def seq_and_payload(frames: list[bytes]) -> tuple[int, bytes] | None:
    """The last two frames (what comes before them differs by release); None for another message."""
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]

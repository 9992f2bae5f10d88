"""A small engine-side event publisher that speaks vLLM's wire protocol, with faults on request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from router.subscription import EventSource

END_SEQ = b"\xff" * 8
ANY_PORT = "tcp://127.0.0.1:*"


def stored(
    hashes: Sequence[int],
    tokens: Sequence[int],
    parent: int | None = None,
    block_size: int = 4,
    **fields: Any,
) -> dict[str, Any]:
    """A `BlockStored` in its map form."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        **fields,
    }


def removed(hashes: Sequence[int], **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **fields}


CLEARED = {"type": "AllBlocksCleared"}


def block(number: int, parent: int | None = None) -> dict[str, Any]:
    """One stored block of four tokens whose content follows from its number."""
    return stored([number], range(number * 4, number * 4 + 4), parent)


class EventPublisher:
    """PUB (as XPUB, to see who subscribes) and ROUTER on free loopback ports, or where another one was.

    buffer: batches kept for replay. replay_requests: the sequence numbers that were asked for.
    """

    def __init__(self, buffer: int = 1000, at: EventSource | None = None) -> None:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._pub.bind(at.endpoint if at else ANY_PORT)
        self._router.bind((at.replay_endpoint if at else None) or ANY_PORT)
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._next_seq = 0
        self._ts = 0.0
        self.replay_requests: list[int] = []
        self.replaying = asyncio.Event()
        self.replaying.set()
        self.holes: set[int] = set()

    @property
    def source(self) -> EventSource:
        return EventSource(self._endpoint(self._pub), self._endpoint(self._router), "kv-events")

    @staticmethod
    def _endpoint(socket: zmq.asyncio.Socket) -> str:
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def joined(self) -> None:
        """Wait until a subscriber gets what is published."""
        assert (await self._pub.recv())[:1] == b"\x01"

    async def publish(self, *events: Any, live: bool = True, buffered: bool = True) -> int:
        """Publish one batch; not `live`: lost on the way, not `buffered`: not there to be replayed."""
        self._ts += 1.0
        return await self.publish_raw(
            msgspec.msgpack.encode([self._ts, list(events), 0]), live=live, buffered=buffered
        )

    async def publish_raw(self, payload: bytes, *, live: bool = True, buffered: bool = True) -> int:
        seq = self._next_seq
        self._next_seq += 1
        if buffered:
            self._buffer.append((seq, payload))
        if live:
            await self.send(seq, payload)
        return seq

    async def send(self, seq: int, payload: bytes) -> None:
        await self._pub.send_multipart((b"kv-events", seq.to_bytes(8, "big"), payload))

    async def send_again(self, seq: int) -> None:
        """Send a buffered batch a second time."""
        await self.send(seq, dict(self._buffer)[seq])

    async def send_frames(self, *frames: bytes) -> None:
        await self._pub.send_multipart((b"kv-events", *frames))

    def restart(self) -> None:
        """As a new engine on the same ports would: from 0, with nothing to replay."""
        self._buffer.clear()
        self._next_seq = 0

    async def serve_replays(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            self.replay_requests.append(int.from_bytes(start, "big"))
            await self.replaying.wait()
            for seq, payload in list(self._buffer):
                if seq >= int.from_bytes(start, "big") and seq not in self.holes:
                    await self._router.send_multipart(
                        (client, b"", b"kv-events", seq.to_bytes(8, "big"), payload)
                    )
            self.holes.clear()
            await self._router.send_multipart((client, b"", b"", END_SEQ, b""))

    def close(self) -> None:
        self._context.destroy(linger=0)


@asynccontextmanager
async def publisher(buffer: int = 1000, at: EventSource | None = None) -> AsyncIterator[EventPublisher]:
    engine = EventPublisher(buffer, at)
    replays = asyncio.create_task(engine.serve_replays())
    try:
        yield engine
    finally:
        replays.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replays
        engine.close()

"""A simulated engine's KV events on the wire: vLLM's publisher (0.32 `ZmqEventPublisher`) without its thread.

PUB     [topic, seq, payload]; seq is 8 bytes, big-endian, from 0, +1 a batch
ROUTER  asked [b"", seq]: every buffered batch from seq on as [b"", topic, seq, payload],
        then [b"", b"", -1, b""]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

import zmq.asyncio
from zmq.constants import SocketOption, SocketType
from zmq.sugar.socket import Socket

from deployments.engines.ports import PortPair
from router.relay import EventSource

__all__ = ["SimulatedPublisher"]

log = logging.getLogger("sightline.deployments")

TOPIC = "kv-events"
#: vLLM's own high-water mark of the PUB socket.
SEND_HWM = 100_000
_END_SEQ = b"\xff" * 8


class SimulatedPublisher:
    """Publishes from the event loop in which it was made.

    ports: where to listen; None for free ones. Always on the loopback address.
    replay_batches: the last batches that are kept for a subscriber that missed them.
    """

    def __init__(self, ports: PortPair | None, replay_batches: int) -> None:
        self._ports = ports  # keeps the claim on the ports
        self._context = zmq.asyncio.Context()
        # A PUB socket never blocks, and needs no event loop.
        self._pub = self._context.socket(SocketType.PUB, socket_class=Socket)
        self._pub.set_hwm(SEND_HWM)
        self._router = self._context.socket(SocketType.ROUTER)
        self._router.set_hwm(0)
        self._pub.bind(_address(ports.events if ports else None))
        self._router.bind(_address(ports.replay if ports else None))
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=replay_batches)
        self._next_seq = 0
        self._replays = asyncio.create_task(self._serve_replays())

    @property
    def source(self) -> EventSource:
        endpoint, replay = (
            socket.getsockopt_string(SocketOption.LAST_ENDPOINT) for socket in (self._pub, self._router)
        )
        return EventSource(endpoint, replay, TOPIC)

    @property
    def last_seq(self) -> int:
        """Of the last batch; -1 before the first."""
        return self._next_seq - 1

    def publish(self, payload: bytes) -> None:
        """One batch. A subscriber that is too slow loses it, and may ask for it again."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._buffer.append((seq, payload))
        self._pub.send_multipart((TOPIC.encode(), seq.to_bytes(8, "big"), payload))

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3:
                log.warning("not a replay request: %d frames", len(frames))
                continue
            client, _, start = frames
            for seq, payload in list(self._buffer):
                if seq >= int.from_bytes(start, "big"):
                    batch = (client, b"", TOPIC.encode(), seq.to_bytes(8, "big"), payload)
                    await self._router.send_multipart(batch)
            await self._router.send_multipart((client, b"", b"", _END_SEQ, b""))

    async def aclose(self) -> None:
        self._replays.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._replays
        self._context.destroy(linger=0)


def _address(port: int | None) -> str:
    return f"tcp://127.0.0.1:{port if port is not None else '*'}"

"""Whether an engine has published more than was heard of it: asked beside the stream, once that is silent.

Silence alone proves nothing: on a busy machine the engine's publisher may wait for its turn, or this process
for its own, for longer than any settle time, and the last batch may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq.asyncio
from zmq.error import ZMQError

from router.subscription import END_SEQ, REPLAY_TIMEOUT_S, RETRY_S, EventSubscription, seq_and_payload

__all__ = ["Confirmation"]

log = logging.getLogger("sightline.relay")


class Confirmation:
    """Is sure, or not, that all is heard which the engine published before the last doubt.

    silence_s: how long nobody must have doubted before the engine is asked. on_sure: called when it has
    answered that there is no more.
    """

    def __init__(
        self, subscription: EventSubscription, silence_s: float, on_sure: Callable[[], None]
    ) -> None:
        self._subscription = subscription
        self._silence_s = silence_s
        self._on_sure = on_sure
        self._doubts = 0
        self._sure_of = -1
        self._doubted_at = 0.0
        self._in_doubt = asyncio.Event()
        self._dealer: zmq.asyncio.Socket | None = None

    @property
    def is_sure(self) -> bool:
        return self._sure_of == self._doubts

    def doubt(self) -> None:
        """Something was heard, or asked of the engine: more may come of it."""
        self._doubts += 1
        self._in_doubt.set()

    async def run(self) -> None:
        """Ask after each doubt, until cancelled."""
        while True:
            await self._in_doubt.wait()
            doubts = await self._silence()
            try:
                is_sure = await self._has_heard_all()
            except (ZMQError, TimeoutError) as error:
                log.debug("the engine does not say whether there is more: %r", error)
                self._hang_up()
                is_sure = False
                await asyncio.sleep(RETRY_S)
            if is_sure:
                self._sure_of = doubts
                if self.is_sure:
                    self._on_sure()
            else:
                self._in_doubt.set()

    async def _silence(self) -> int:
        """Wait until nobody has doubted for long enough. Returns the doubts by then."""
        while True:
            doubts = self._doubts
            self._in_doubt.clear()
            await asyncio.sleep(self._silence_s)
            if doubts == self._doubts:
                return doubts

    async def _has_heard_all(self) -> bool:
        """What comes by the stream while the engine is asked counts as heard.

        Raises:
            TimeoutError: it did not answer.
        """
        dealer = self._dealer = self._dealer or self._subscription.connect_dealer()
        if dealer is None:
            return True  # there is nobody to ask
        last = -1
        await dealer.send_multipart((b"", self._subscription.status.next_seq.to_bytes(8, "big")))
        while True:
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                message = seq_and_payload(await dealer.recv_multipart())
            if message is None:
                continue
            if message[0] == END_SEQ:
                return last < self._subscription.status.next_seq
            last = message[0]

    def _hang_up(self) -> None:
        """A late answer must not be taken for that to the next question."""
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None

"""The client's end of a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.line.frames import (
    MAGIC,
    MAX_BODY_BYTES,
    OK,
    BodyTooLarge,
    CallFailed,
    End,
    Frame,
    LineAddress,
    LineDown,
)

__all__ = ["Line"]


class Line(End):
    """Made by `open`; one that broke stays broken."""

    def __init__(self, token: bytes, on_lost: Callable[[Line], None]) -> None:
        super().__init__()
        self._token = token
        self._on_lost = on_lost
        self._next_id = 0
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._welcome = b""
        self._let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.is_up = False

    @classmethod
    async def open(
        cls, address: LineAddress, *, on_lost: Callable[[Line], None], timeout_s: float = 2.0
    ) -> Line:
        """Connect, and be let in.

        on_lost: called once when the open line breaks or is closed.

        Raises:
            LineDown: nobody listens, or does not let us in, or not in time.
        """
        line = cls(address.token, on_lost)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: line, address.host, address.port)
                await line._let_in
        except (OSError, TimeoutError, LineDown) as error:
            line.abort()
            raise LineDown(f"{address}: {str(error) or 'no answer'}") from error
        except asyncio.CancelledError:
            line.abort()
            raise
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.write(MAGIC + self._token)

    def data_received(self, data: bytes) -> None:
        if self.is_up:
            super().data_received(data)
            return
        self._welcome += data[: len(MAGIC) + 1]
        if not MAGIC.startswith(self._welcome):
            self.abort()
        elif self._welcome == MAGIC:
            self.is_up = True
            if not self._let_in.done():
                self._let_in.set_result(None)

    async def call(self, method: int, body: bytes) -> bytes:
        """Have `method` served.

        Raises:
            LineError: see `router.line.frames`.
        """
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"a call of {len(body)} bytes; at most {MAX_BODY_BYTES}")
        if not self._can_write.is_set():
            await self._can_write.wait()
        if not self.is_up:
            raise LineDown("the line is closed")
        call_id = self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        self.send(Frame(call_id, method, body))
        try:
            return await answer
        finally:
            del self._calls[call_id]

    def take(self, frame: Frame) -> None:
        answer = self._calls.get(frame.call_id)
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if frame.code == OK:
            answer.set_result(frame.body)
        else:
            answer.set_exception(CallFailed(frame.body.decode(errors="replace")))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        was_up, self.is_up = self.is_up, False
        down = LineDown(f"the line broke: {exc or 'closed by the other end'}")
        if not self._let_in.done():
            self._let_in.set_exception(down)
            self._let_in.exception()  # whoever opened it may have given up
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(down)
        self._can_write.set()
        if was_up:
            self._on_lost(self)

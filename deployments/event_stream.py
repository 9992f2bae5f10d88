"""A streamed response: server-sent events, written as they come and no more often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from ray.exceptions import TaskCancelledError
from starlette.types import Receive, Scope, Send

from deployments.engine_call import Reply

__all__ = ["DONE", "EventStream"]

#: OpenAI's last event.
DONE = b"data: [DONE]\n\n"


class EventStream:
    """An ASGI response; its last event is `DONE`.

    It ends the engine's work when the client leaves, even where that was before the first event was asked
    for: an iterator that never began has no `finally` to run.
    """

    def __init__(self, events: AsyncGenerator[bytes], reply: Reply) -> None:
        self._events = events
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listener = asyncio.create_task(_departure(receive))
        task = asyncio.current_task()
        assert task is not None

        def leave(_: asyncio.Task[None]) -> None:
            task.cancel()

        listener.add_done_callback(leave)
        try:
            await self._send(send)
        except asyncio.CancelledError:
            if not listener.done() or listener.cancelled() or task.uncancel():
                raise
            listener.result()
        finally:
            listener.remove_done_callback(leave)
            listener.cancel()
            await self._reply.close()

    async def _send(self, send: Send) -> None:
        names = self._reply.receipt.headers | {"content-type": "text/event-stream; charset=utf-8"}
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in names.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                is_last = event.endswith(DONE)
                await send({"type": "http.response.body", "body": event, "more_body": not is_last})


async def _departure(receive: Receive) -> None:
    """Returns when the client has left. Serve (2.60) tells of that by an exception, too."""
    with contextlib.suppress(TaskCancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass

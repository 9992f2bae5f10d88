"""A small OpenAI-like chat endpoint for tests, in a thread: streams words, and misbehaves as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

#: Tokens of the template that this endpoint adds to a prompt.
TEMPLATE_TOKENS = 7
TOKENS_PER_WORD = 2


@dataclass
class ChatEndpoint:
    """bodies: of the requests so far, in order. connections: opened so far. most: requests at once so far.

    together: no answer until so many were under way at once (but to the first two, which count words).
    pause_s: before the first word and between words. statuses: of coming requests, popped; then 200.
    tells: usage is told. cuts: the stream ends in the middle. errs: the stream carries an error.
    lives_up_to: requests that a connection carries. early: a status line of its own before each answer.
    """

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    under_way: int = 0
    most: int = 0
    together: int = 0
    first_s: float = 0.0
    pause_s: float = 0.0
    statuses: list[int] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["tiny"])
    tells: bool = True
    cuts: bool = False
    errs: bool = False
    lives_up_to: int = 1_000_000
    early: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(self.lives_up_to):
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                body = await reader.readexactly(length)
                await (self._chat(writer, body) if "chat/completions" in head else self._models(writer))

    async def _models(self, writer: asyncio.StreamWriter) -> None:
        self._whole(writer, 200, {"object": "list", "data": [{"id": model} for model in self.models]})

    async def _chat(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        request = json.loads(body)
        self.bodies.append(request)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            while len(self.bodies) > 2 and self.most < self.together:
                await asyncio.sleep(0.001)
            await self._answer(writer, request)
            await writer.drain()
        finally:
            self.under_way -= 1

    async def _answer(self, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        status = self.statuses.pop(0) if self.statuses else 200
        await asyncio.sleep(self.first_s)
        if status != 200:
            error = {"message": "no", "code": "overloaded" if status == 429 else None, "type": "a_type"}
            self._whole(writer, status, {"error": error})
        elif not request.get("stream"):
            message = {"message": {"content": "w" * request["max_tokens"]}}
            self._whole(writer, 200, {"choices": [message], "usage": self._usage(request)})
        else:
            self._head(writer, 200, "text/event-stream", "transfer-encoding: chunked")
            async for event in self._events(request):
                data = event if isinstance(event, str) else json.dumps(event)
                piece = f"data: {data}\n\n".encode()
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            writer.write(b"0\r\n\r\n")

    async def _events(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any] | str]:
        yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        for number in range(request["max_tokens"]):
            await asyncio.sleep(self.pause_s)
            if self.cuts and number:
                return
            if self.errs and number:
                yield {"error": {"message": "the engine died", "code": "engine_failed"}}
            yield {"choices": [{"delta": {"content": f"word{number} "}}]}
        if request.get("stream_options") and self.tells:
            yield {"choices": [], "usage": self._usage(request)}
        yield "[DONE]"

    def _usage(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if not self.tells:
            return None
        prompt = TEMPLATE_TOKENS + TOKENS_PER_WORD * sum(len(text.split()) for text in texts(request))
        details = {"cached_tokens": prompt // 2}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": request["max_tokens"],
            "prompt_tokens_details": details,
        }

    def _whole(self, writer: asyncio.StreamWriter, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self._head(writer, status, "application/json", f"content-length: {len(body)}")
        writer.write(body)

    def _head(self, writer: asyncio.StreamWriter, status: int, kind: str, length: str) -> None:
        headers = [f"{name}: {value}" for name, value in self.headers.items()]
        if self.early:
            writer.write(f"HTTP/1.1 {self.early}\r\n\r\n".encode())
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", length, *headers, "", ""]
        writer.write("\r\n".join(lines).encode())


def texts(request: dict[str, Any]) -> list[str]:
    """Every text of a request's messages."""
    found = []
    for message in request["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [part["text"] for part in parts if part["type"] == "text"]
    return found


def urls(request: dict[str, Any]) -> list[str]:
    """The addresses of a request's pictures."""
    contents = [m["content"] for m in request["messages"] if not isinstance(m["content"], str)]
    return [p["image_url"]["url"] for parts in contents for p in parts if p["type"] == "image_url"]


@contextlib.contextmanager
def chat_endpoint(**settings: Any) -> Iterator[ChatEndpoint]:
    """A server on a free port of 127.0.0.1, in a thread of its own."""
    state = ChatEndpoint(**settings)
    started, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        server = await asyncio.start_server(state.serve, "127.0.0.1", 0, limit=1 << 24)
        state.port = server.sockets[0].getsockname()[1]
        started.set()
        await ended.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    started.wait()
    try:
        yield state
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()

"""A small web server for tests, that answers as told and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Answer:
    """stall_s: seconds before the answer. ignores_range: sends everything with status 200.
    omits_length: writes no content-length of its own. drip: (bytes, seconds) of each piece.
    """

    body: bytes = b""
    status: str = "200 OK"
    headers: tuple[str, ...] = ()
    stall_s: float = 0.0
    ignores_range: bool = False
    chunked: bool = False
    omits_length: bool = False
    drip: tuple[int, float] = (16384, 0.0)


@dataclass
class Origin:
    """requests: (path, headers by lower-case name). sent: body bytes written so far."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split(" ")[1]
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:]) if k}
            self.requests.append((path, headers))
            answer = self.answers.get(path.partition("?")[0], Answer(status="404 Not Found"))
            await asyncio.sleep(answer.stall_s)
            await self._send(writer, answer, headers.get("range"))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left, as some tests want
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer, wanted: str | None) -> None:
        status, body, headers = answer.status, answer.body, list(answer.headers)
        if wanted and status.startswith("200") and not answer.ignores_range:
            first, last = map(int, re.findall(r"\d+", wanted))
            status = "206 Partial Content"
            headers.append(f"content-range: bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
            body = body[first : last + 1]
        if not (answer.chunked or answer.omits_length):
            headers.append(f"content-length: {len(body)}")
        writer.write("\r\n".join([f"HTTP/1.1 {status}", "connection: close", *headers, "", ""]).encode())
        piece, pause_s = answer.drip
        for at in range(0, len(body), piece):
            writer.write(body[at : at + piece])
            await writer.drain()
            self.sent += len(body[at : at + piece])
            await asyncio.sleep(pause_s)


@contextlib.asynccontextmanager
async def origin() -> AsyncIterator[Origin]:
    """A server on a free port of 127.0.0.1."""
    state = Origin()
    server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()

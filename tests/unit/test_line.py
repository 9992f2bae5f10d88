"""The direct line over real sockets, on both event loops that Ray may use: calls, and hostile peers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from router.line import BodyTooLarge, CallFailed, Line, LineAddress, LineDown, LineServer, frames, server
from router.line.frames import MAGIC, Frame, Frames

GENEROUS_S = 30.0
ECHO, FAIL, WAIT, FLOOD = range(4)
FLOOD_BYTES = 1 << 20


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test once on each kind of loop."""

    @pytest.mark.parametrize(
        "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    def run(loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**fixtures))

    own = inspect.signature(run).parameters["loop"]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__dict__["__signature__"] = inspect.Signature([own, *inspect.signature(test).parameters.values()])
    return run


class House:
    """A server whose calls can be held at a gate. served: bodies, as they came."""

    def __init__(self) -> None:
        self.server = LineServer(self._serve)
        self.gate = asyncio.Event()
        self.served: list[bytes] = []
        self.lost: list[Line] = []
        self.address: LineAddress

    async def _serve(self, method: int, body: bytes) -> bytes:
        self.served.append(body)
        if method == FAIL:
            raise ValueError(f"{body.decode()} is refused")
        if method == WAIT:
            await self.gate.wait()
        return bytes(FLOOD_BYTES) if method == FLOOD else body

    async def line(self, **changes: Any) -> Line:
        to = LineAddress(self.address.host, self.address.port, changes.pop("token", self.address.token))
        return await Line.open(to, on_lost=self.lost.append, timeout_s=GENEROUS_S)

    async def stranger(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address.host, self.address.port)

    async def until_served(self, count: int) -> None:
        await until(lambda: len(self.served) >= count)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(GENEROUS_S):
        while not true():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    house = House()
    house.address = await house.server.listen("127.0.0.1")
    try:
        yield house
    finally:
        await house.server.close()


@on_both_loops
async def test_a_call_is_answered_with_what_the_handler_returns() -> None:
    async with house() as at:
        line = await at.line()
        assert await line.call(ECHO, b"one") == b"one"
        assert await line.call(ECHO, b"") == b""
        assert at.server.num_lines == 1


@on_both_loops
async def test_many_calls_are_under_way_at_once_and_each_gets_its_own_answer() -> None:
    async with house() as at:
        line = await at.line()
        slow = asyncio.create_task(line.call(WAIT, b"slow"))
        await at.until_served(1)
        bodies = [b"%d" % n for n in range(200)]
        assert await asyncio.gather(*(line.call(ECHO, body) for body in bodies)) == bodies
        assert not slow.done()
        at.gate.set()
        assert await slow == b"slow"


@on_both_loops
async def test_what_the_handler_raises_comes_back_by_name_and_the_line_stays_up() -> None:
    async with house() as at:
        line = await at.line()
        with pytest.raises(CallFailed, match="ValueError: seven is refused"):
            await line.call(FAIL, b"seven")
        assert await line.call(ECHO, b"on") == b"on"


@on_both_loops
async def test_megabytes_go_both_ways_beside_small_calls() -> None:
    async with house() as at:
        line = await at.line()
        large = bytes(range(256)) * (32 << 10)
        answers = await asyncio.gather(line.call(ECHO, large), *(line.call(ECHO, b"x") for _ in range(50)))
        assert answers == [large] + [b"x"] * 50


@on_both_loops
async def test_a_body_past_the_limit_is_refused_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house() as at:
        line = await at.line()
        monkeypatch.setattr("router.line.client.MAX_BODY_BYTES", 10)
        with pytest.raises(BodyTooLarge, match="11 bytes; at most 10"):
            await line.call(ECHO, bytes(11))
        assert await line.call(ECHO, bytes(10)) == bytes(10)


@on_both_loops
async def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    async with house() as at:
        line = await at.line()
        gone = asyncio.create_task(line.call(WAIT, b"gone"))
        await at.until_served(1)
        gone.cancel()
        at.gate.set()
        assert await line.call(ECHO, b"next") == b"next"
        assert at.lost == []


@on_both_loops
async def test_a_server_that_ends_breaks_the_calls_under_way_and_says_so_once() -> None:
    async with house() as at:
        line = await at.line()
        asked = asyncio.create_task(line.call(WAIT, b"asked"))
        await at.until_served(1)
        await at.server.close()
        with pytest.raises(LineDown):
            await asked
        with pytest.raises(LineDown):
            await line.call(ECHO, b"late")
        assert at.lost == [line]


@on_both_loops
async def test_a_client_that_goes_is_forgotten_and_its_call_served_to_the_end() -> None:
    async with house() as at:
        line = await at.line()
        asked = asyncio.create_task(line.call(WAIT, b"asked"))
        await at.until_served(1)
        line.abort()
        with pytest.raises(LineDown):
            await asked
        await until(lambda: at.server.num_lines == 0)
        at.gate.set()
        again = await at.line()
        assert await again.call(ECHO, b"again") == b"again"


@on_both_loops
async def test_nobody_at_the_address_is_a_line_that_is_down() -> None:
    async with house() as at:
        await at.server.close()
        with pytest.raises(LineDown, match=str(at.address.port)):
            await at.line()


@asynccontextmanager
async def other_server(says: bytes) -> AsyncIterator[LineAddress]:
    """Says one thing to everybody, and then listens until they go."""
    gone = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        gone.set()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield LineAddress("127.0.0.1", other.sockets[0].getsockname()[1], bytes(32))
    await gone.wait()
    other.close()


@on_both_loops
async def test_a_server_that_says_nothing_is_given_up() -> None:
    async with other_server(b"") as address:
        with pytest.raises(LineDown, match="no answer"):
            await Line.open(address, on_lost=lambda line: None, timeout_s=0.05)


@pytest.mark.parametrize("welcome", [b"HTTP/1.1 400 Bad Request\r\n\r\n", MAGIC[:-1] + b"\x7f", MAGIC + b"!"])
@on_both_loops
async def test_a_server_of_another_kind_is_no_line(welcome: bytes) -> None:
    async with other_server(welcome) as address:
        with pytest.raises(LineDown):
            await Line.open(address, on_lost=lambda line: None, timeout_s=GENEROUS_S)


@on_both_loops
async def test_a_wrong_token_is_turned_away() -> None:
    async with house() as at:
        with pytest.raises(LineDown):
            await at.line(token=bytes(32))
        assert at.server.num_lines == 0


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", bytes(5000), MAGIC * 10]
)
@on_both_loops
async def test_garbage_instead_of_a_greeting_closes_the_connection_unserved(said: bytes) -> None:
    async with house() as at:
        reader, writer = await at.stranger()
        writer.write(said)
        assert await closed(reader)
        writer.close()
        assert at.served == []


@on_both_loops
async def test_a_call_sent_along_with_the_greeting_is_not_served() -> None:
    async with house() as at:
        reader, writer = await at.stranger()
        writer.write(MAGIC + at.address.token + framed(1, ECHO, b"eager"))
        assert await closed(reader)
        writer.close()
        assert at.served == []


@on_both_loops
async def test_silence_is_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_TIMEOUT_S", 0.05)
    async with house() as at:
        reader, writer = await at.stranger()
        writer.write(MAGIC)  # half of a greeting
        assert await closed(reader)
        writer.close()


@on_both_loops
async def test_more_strangers_than_may_wait_are_sent_away_and_friends_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_STRANGERS", 2)
    async with house() as at:
        line = await at.line()
        waiting = [await at.stranger() for _ in range(2)]
        reader, writer = await at.stranger()
        assert await closed(reader)
        for other in (writer, *(writer for _, writer in waiting)):
            other.close()
        assert await line.call(ECHO, b"still") == b"still"


@on_both_loops
async def test_a_frame_of_giant_length_closes_the_line_before_it_is_read() -> None:
    async with house() as at:
        reader, writer = await friend(at)
        writer.write(struct.pack("<IIB", 0xFFFFFFFF, 1, ECHO) + b"begin")
        assert await closed(reader)
        writer.close()
        assert at.served == []


@on_both_loops
async def test_a_connection_that_ends_within_a_frame_harms_nobody() -> None:
    async with house() as at:
        _, writer = await friend(at)
        writer.write(framed(1, ECHO, b"whole") + framed(2, ECHO, b"halved")[:-3])
        await at.until_served(1)
        writer.close()
        await until(lambda: at.server.num_lines == 0)
        assert at.served == [b"whole"]
        assert await (await at.line()).call(ECHO, b"on") == b"on"


@on_both_loops
async def test_frames_that_trickle_in_are_served_whole() -> None:
    async with house() as at:
        reader, writer = await friend(at)
        for byte in framed(7, ECHO, b"slowly"):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(9 + 6) == framed(7, frames.OK, b"slowly")
        writer.close()


@on_both_loops
async def test_a_client_that_asks_and_never_reads_is_not_asked_for_more() -> None:
    """What waits for it in the server is bounded: its questions stay in its own socket."""
    async with house() as at:
        reader, writer = await friend(at)
        asked = 3000
        for number in range(asked):
            writer.write(framed(number, FLOOD, b"?"))
            if number % 100 == 0:
                await asyncio.sleep(0)
        line = await at.line()
        assert await line.call(ECHO, b"others") == b"others"
        await asyncio.sleep(0.05)
        assert len(at.served) < asked
        writer.close()
        reader.feed_eof()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the other end hangs up without a word."""
    try:
        async with asyncio.timeout(GENEROUS_S):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


async def friend(at: House) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that was let in, frames to be made by hand."""
    reader, writer = await at.stranger()
    writer.write(MAGIC + at.address.token)
    assert await reader.readexactly(len(MAGIC)) == MAGIC
    return reader, writer


def framed(call_id: int, code: int, body: bytes) -> bytes:
    return struct.pack("<IIB", len(body), call_id, code) + body


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=40))), st.data())
def test_frames_are_the_same_however_the_stream_is_cut(
    sent: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(framed(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, seen = Frames(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        seen += reader.feed(stream[begin:end])
    assert seen == [Frame(*frame) for frame in sent]


@on_both_loops
async def test_the_first_free_port_of_a_range_is_taken() -> None:
    async with house() as first:
        second = LineServer(first._serve)
        ports = (first.address.port, first.address.port + 1, first.address.port + 2)
        assert (await second.listen("127.0.0.1", ports)).port in ports[1:]
        await second.close()
        with pytest.raises(OSError):
            await LineServer(first._serve).listen("127.0.0.1", ports[:1])


def test_a_token_is_never_shown() -> None:
    address = LineAddress("h", 1, b"secret-token")
    assert "secret" not in f"{address!r} {address}"

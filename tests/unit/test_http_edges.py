"""Clients that leave, and calls that fail before a replica has them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import TaskCancelledError
from starlette.requests import Request

from deployments.engine_call import EngineCall, Receipt, Reply
from deployments.event_stream import EventStream
from deployments.json_bodies import read_json
from processors import RequestError
from sightline_types import (
    CandidateScore,
    Decision,
    DecisionId,
    DecisionReason,
    WorkerId,
)

WORKER = WorkerId("a")
SCOPE: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "POST", "headers": []}


async def nothing() -> Any:
    return {"type": "http.disconnect"}


async def test_a_body_that_ends_early_is_the_clients_doing() -> None:
    with pytest.raises(RequestError) as caught:
        await read_json(Request(SCOPE, nothing), 1000)
    assert caught.value.code == "client_left"


async def test_a_client_that_leaves_before_the_first_event_ends_the_engines_work() -> None:
    closed = []

    async def close() -> None:
        closed.append(True)

    async def events() -> Any:
        yield b"data: never asked for"

    async def gone(message: Any) -> None:
        raise OSError("the client left")

    async def messages() -> Any:
        yield

    reply = Reply(Receipt(DecisionId("1"), WORKER, None, "tie"), messages(), close)
    with pytest.raises(BaseException):  # noqa: B017  whatever starlette makes of it
        await EventStream(events(), reply)(SCOPE, nothing, gone)
    assert closed == [True]


async def test_a_client_that_leaves_mid_stream_is_no_error() -> None:
    closed, begun = [], asyncio.Event()

    async def close() -> None:
        closed.append(True)

    async def events() -> Any:
        begun.set()
        await asyncio.Event().wait()
        yield b""

    async def cancelled() -> Any:
        await begun.wait()
        raise TaskCancelledError

    async def send(message: Any) -> None:
        """A client that takes everything."""

    async def messages() -> Any:
        yield

    reply = Reply(Receipt(DecisionId("1"), WORKER, None, "tie"), messages(), close)
    await EventStream(events(), reply)(SCOPE, cancelled, send)
    assert closed == [True]


class Bookings:
    def __init__(self) -> None:
        self.cancelled: list[DecisionId] = []

    def cancel(self, decision_id: DecisionId) -> None:
        self.cancelled.append(decision_id)

    def hold(self, decision_id: DecisionId) -> None:
        """Leases are not of interest here."""

    def let_go(self, decision_id: DecisionId) -> None:
        """Leases are not of interest here."""


class Unassigned:
    """What Serve returns of a call whose arguments could not be sent."""

    async def __anext__(self) -> Any:
        raise TypeError("cannot be pickled")

    def cancel(self) -> None:
        raise TypeError("cannot be pickled")


class Engine:
    def remote(self, request: Any, payload: Any, *, pin: Any) -> Unassigned:
        return Unassigned()


async def test_a_call_that_cannot_be_sent_gives_its_booking_back() -> None:
    score = CandidateScore(WORKER, 0, 0, 3, 0, 0, 0.0, 0.0, 0.0, 0.0)
    decision = Decision(DecisionId("1"), WORKER, 32, DecisionReason.COST, (score,), 100, 0, 1)
    bookings: Any = Bookings()
    call = EngineCall(DecisionId("1"), decision, bookings)
    request: Any = None
    with pytest.raises(TypeError):
        await call.begin(Engine(), request, None, request)
    await call.close()
    assert bookings.cancelled == ["1"]

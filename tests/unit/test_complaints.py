"""A fault inside the router actor: told in its log, and nobody else's request suffers from it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from router.actor import RouterActor
from router.calls import CALLS, BadCall, Undecided
from router.complaints import PERIOD_S, Complaints
from router.config import RouterConfig
from router.core import RouterCore
from sightline_types import Decision, DecisionId, DegradeReason, RouteQuery, Tier, TierDelta, WorkerPush
from tests.integration.worker import CONTRACT, KEYS, A, packed, query


async def actor_with_a_worker() -> RouterActor:
    actor = RouterActor(RouterConfig())
    await actor.push(WorkerPush(A, 1, 0, (TierDelta(Tier(), packed(KEYS)),), table=True, contract=CONTRACT))
    return actor


@pytest.fixture
def one_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = RouterCore.decide

    def fragile(core: RouterCore, asked: RouteQuery) -> Decision:
        if asked.decision_id == "bad":
            raise ZeroDivisionError("no such luck")
        return decide(core, asked)

    monkeypatch.setattr(RouterCore, "decide", fragile)


async def test_one_decision_that_breaks_takes_no_other_with_it(
    one_breaks: None, caplog: pytest.LogCaptureFixture
) -> None:
    actor = await actor_with_a_worker()
    names = [DecisionId(name) for name in ("good", "bad", "better")]
    good, bad, better = await actor.decide_many([query(name) for name in names])
    assert isinstance(good, Decision) and isinstance(better, Decision)
    assert bad == Undecided(DegradeReason.ROUTER_UNREACHABLE)
    assert "a decision failed (1 times so far): ZeroDivisionError: no such luck" in caplog.text
    assert "Traceback" in caplog.text


async def test_any_call_that_breaks_is_told_by_its_name_and_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    actor = await actor_with_a_worker()

    def broken(*_: Any) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(RouterCore, "renew", broken)
    renew = CALLS["renew"]
    with pytest.raises(KeyError):
        await actor.ask(renew.number, renew.pack(([DecisionId("one")],)))
    assert "renew failed (1 times so far): KeyError" in caplog.text


async def test_a_call_that_cannot_be_read_is_its_callers_fault_and_no_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    actor = await actor_with_a_worker()
    with pytest.raises(BadCall):
        await actor.ask(CALLS["renew"].number, b"\xc1")
    assert "failed" not in caplog.text


def test_complaints_are_told_once_a_minute_and_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = Complaints(logging.getLogger("sightline.router"), clock=lambda: now)
    for _ in range(3):
        complaints.note("push", ValueError("odd"))
    complaints.note("renew", ValueError("odd, too"))
    now = PERIOD_S
    complaints.note("push", ValueError("odd again"))
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "push failed (1 times so far): ValueError: odd",
        "renew failed (1 times so far): ValueError: odd, too",
        "push failed (4 times so far): ValueError: odd again",
    ]

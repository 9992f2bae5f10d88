"""How the router's client packs what waits into calls; the real router actor, in this process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from router.actor import RouterActor
from router.calls import Undecided
from router.client import CALLS, REQUESTS_A_CALL, RouterClient
from router.config import RouterConfig
from router.link import RouterUnreachable
from router.status import PoolView
from sightline_types import CandidateScore, Decision, DegradeReason, Tier, TierDelta, WorkerPush
from tests.integration.worker import CONTRACT, KEYS, A, B, builder, packed


class GatedLink:
    """To an actor in this process; what decides waits at the gate. sizes: of the calls that came there."""

    def __init__(self) -> None:
        self.actor = RouterActor(RouterConfig())
        self.gate = asyncio.Event()
        self.sizes: list[int] = []
        self.is_up = True

    async def call(self, method: str, *args: Any) -> Any:
        if method == "decide_many":
            self.sizes.append(len(args[0]))
            await self.gate.wait()
        if not self.is_up:
            raise RouterUnreachable("no router actor")
        return await getattr(self.actor, method)(*args)

    async def booked(self) -> int:
        return sum(row.load.active_requests for row in await self.actor.workers())


@pytest_asyncio.fixture
async def link() -> AsyncIterator[GatedLink]:
    link = GatedLink()
    for worker, held in ((A, KEYS), (B, ())):
        table = (TierDelta(Tier(), packed(held)),)
        await link.actor.push(WorkerPush(worker, 1, 0, table, table=True, contract=CONTRACT))
    yield link


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def asked(link: GatedLink, count: int) -> tuple[RouterClient, list[asyncio.Task[Any]]]:
    """So many requests that wait for their decisions."""
    client = RouterClient(link, budget_s=60)  # type: ignore[arg-type]
    await client.pool(60)
    tasks = [asyncio.create_task(client.decide(builder(f"d{number}"))) for number in range(count)]
    await some_turns()
    return client, tasks


async def test_many_requests_are_several_calls_and_two_of_them_are_under_way(link):
    _, tasks = await asked(link, 3 * REQUESTS_A_CALL + 1)
    assert link.sizes == [REQUESTS_A_CALL] * CALLS
    link.gate.set()
    decisions = await asyncio.gather(*tasks)
    assert [decision.decision_id for decision in decisions] == [f"d{number}" for number in range(len(tasks))]
    assert sum(link.sizes) == len(tasks)


async def test_few_requests_that_come_together_are_one_call(link):
    _, tasks = await asked(link, 5)
    link.gate.set()
    await asyncio.gather(*tasks)
    assert link.sizes == [5]


async def test_a_decision_that_nobody_waits_for_any_more_is_taken_back(link):
    _, tasks = await asked(link, 3)
    tasks[1].cancel()
    link.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await some_turns()
    assert tasks[1].cancelled()
    assert await link.booked() == 2


async def test_a_request_that_goes_before_its_call_is_never_asked(link):
    _, tasks = await asked(link, CALLS * REQUESTS_A_CALL + 2)
    tasks[-1].cancel()
    await some_turns()
    link.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(link.sizes) == len(tasks) - 1


async def test_a_request_that_goes_in_the_moment_of_its_call_is_not_asked_either(link):
    client, _ = await asked(link, 0)
    task = asyncio.create_task(client.decide(builder("gone")))
    await asyncio.sleep(0)
    task.cancel()
    await some_turns()
    assert (task.cancelled(), link.sizes) == (True, [])


async def test_without_an_actor_every_request_of_a_call_is_told_so_by_name(link):
    client, tasks = await asked(link, 40)
    link.is_up = False
    link.gate.set()
    assert set(await asyncio.gather(*tasks)) == {Undecided(DegradeReason.ROUTER_UNREACHABLE)}
    assert client.undecided == {DegradeReason.ROUTER_UNREACHABLE: 40}


async def test_what_crosses_to_the_ingress_is_the_decision_with_its_first_candidates(link):
    link.gate.set()
    _, (task,) = await asked(link, 1)
    decision = await task
    assert isinstance(decision, Decision)
    kept = await link.actor.receipt(decision.decision_id)
    assert kept is not None
    assert (decision.worker, list(decision.candidates)) == (A, list(kept.decision.candidates))
    assert all(isinstance(candidate, CandidateScore) for candidate in decision.candidates)


def test_a_query_survives_the_way_to_the_actor():
    made = builder("one", tie_key=(1 << 64) - 1)(PoolView(1, {A: CONTRACT}))
    assert pickle.loads(pickle.dumps(made)) == made

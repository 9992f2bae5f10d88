"""The router actor's client: batches, budgets, and what happens when the actor is slow, dead or new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.serve.exceptions import RayServeException

from router.actor import RouterActor
from router.calls import Undecided
from router.client import RouterClient
from router.link import ActorAddress, ActorLink, RouterUnreachable
from sightline_types import Decision, DecisionId, DegradeReason, KeyScheme, KeySpec, LifecycleKind, WorkerPush
from tests.integration.worker import (
    CONTRACT,
    KEYS,
    NAMESPACE,
    A,
    B,
    Channel,
    WatchedActor,
    builder,
    eventually,
)

TIMEOUT, UNREACHABLE = DegradeReason.DECISION_TIMEOUT, DegradeReason.ROUTER_UNREACHABLE
#: Longer than any test may take: whoever waits for it fails.
PATIENT_S = 3600.0


class Directory:
    """What the `Router` deployment would answer."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.looks = 0

    async def find(self) -> ActorAddress:
        self.looks += 1
        if self.name is None:
            raise RayServeException("the deployment is not there")
        return ActorAddress(self.name, NAMESPACE)


@asynccontextmanager
async def linked(directory: Directory) -> AsyncIterator[ActorLink]:
    link = ActorLink(directory.find)
    link.start()
    try:
        yield link
    finally:
        await link.close()


@pytest_asyncio.fixture
async def pool(start_actor: Callable[..., Any], request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    async with linked(directory := Directory()) as link:
        pool = Pool(start_actor, directory, link, request.node.name)
        await pool.new_actor()
        yield pool


class Pool:
    """A watched actor with one worker, and a link to it."""

    def __init__(self, start: Callable[..., Any], directory: Directory, link: ActorLink, name: str) -> None:
        self.link = link
        self.actor: Any = None
        self._start, self._directory, self._name = start, directory, name
        self._generation = 0

    async def new_actor(self) -> None:
        """Under a name of its own, as the `Router` deployment does it."""
        self._generation += 1
        name = f"{self._name}:{self._generation}"
        self.actor = self._start(WatchedActor, name=name)
        await self.actor.start.remote([])
        await Channel(self.actor, A).join(KEYS)
        self._directory.name = name
        await lined(self.link)

    def client(self, budget_s: float = PATIENT_S) -> RouterClient:
        return RouterClient(self.link, budget_s=budget_s)

    async def calls(self, method: str) -> int:
        return (await self.actor.calls.remote())[method]

    async def kill_actor(self) -> None:
        """It answers for a moment longer, until its process has ended."""
        ray.kill(self.actor)
        await eventually(lambda: _value(self.link.has_line), lambda has_line: not has_line)

    async def asked(self, queries: int) -> None:
        """Wait until so many queries have reached the actor."""
        await eventually(lambda: self.calls("queries"), lambda count: count == queries)

    async def booked(self) -> int:
        return sum(row.load.active_requests for row in await self.actor.workers.remote())

    async def taken_back(self, decision_id: str) -> None:
        """Wait until a decision that was made has been undone."""

        async def outcome() -> Any:
            receipt = await self.actor.receipt.remote(DecisionId(decision_id))
            return receipt and receipt.outcome

        undone = await eventually(outcome, lambda outcome: outcome is not None)
        assert undone.kind is LifecycleKind.ABORT
        assert await self.booked() == 0


async def test_a_decision_comes_from_the_actor_and_is_booked(pool):
    decision = await pool.client().decide(builder("one"))
    assert isinstance(decision, Decision)
    assert (decision.worker, decision.predicted_cached_tokens) == (A, 96)
    assert await pool.booked() == 1


async def test_requests_that_wait_together_go_in_few_calls(pool):
    client = pool.client()
    await client.pool(60)
    await pool.actor.close_gate.remote()
    first = asyncio.create_task(client.decide(builder("first")))
    await pool.asked(1)
    others = [asyncio.create_task(client.decide(builder(f"other-{n}"))) for n in range(40)]
    await asyncio.sleep(0)
    await pool.actor.open_gate.remote()
    decisions = await asyncio.gather(first, *others)
    assert [d.decision_id for d in decisions] == ["first", *(f"other-{n}" for n in range(40))]
    assert (await pool.calls("decide_many"), await pool.calls("queries")) == (3, 41)


async def test_the_first_requests_ask_for_the_pool_once(pool):
    client = pool.client()
    decisions = await asyncio.gather(*(client.decide(builder(str(n))) for n in range(40)))
    assert all(isinstance(decision, Decision) for decision in decisions)
    assert await pool.calls("pool") == 1


async def test_keys_are_made_again_when_a_worker_of_another_block_size_has_joined(pool):
    client = pool.client()
    await client.pool(60)
    await Channel(pool.actor, B).join(contract=replace(CONTRACT, block_size=32))
    seen = []

    def build(view):
        seen.append({contract.spec for contract in view.contracts.values()})
        return builder("one")(view)

    assert isinstance(await client.decide(build), Decision)
    small, large = KeySpec(KeyScheme.VLLM, 16), KeySpec(KeyScheme.VLLM, 32)
    assert seen == [{small}, {small, large}]
    assert await pool.booked() == 1


async def test_a_slow_actor_costs_a_request_its_budget_and_no_booking(pool):
    client = pool.client(budget_s=0.5)
    await client.pool(60)
    await pool.actor.close_gate.remote()
    assert await client.decide(builder("late")) == Undecided(TIMEOUT)
    assert client.undecided == {TIMEOUT: 1}
    await pool.actor.open_gate.remote()
    await pool.taken_back("late")


async def test_a_request_that_ran_out_of_time_in_the_queue_is_never_sent(pool):
    patient = pool.client()
    await patient.pool(60)
    await pool.actor.close_gate.remote()
    first = asyncio.create_task(patient.decide(builder("first")))
    await pool.asked(1)
    queued = asyncio.create_task(patient.decide(builder("queued")))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    await pool.actor.open_gate.remote()
    await first
    await patient.decide(builder("next"))
    assert await pool.calls("queries") == 2
    assert await pool.actor.receipt.remote(DecisionId("queued")) is None


async def test_a_caller_that_goes_away_takes_its_booking_back(pool):
    client = pool.client()
    await pool.actor.close_gate.remote()
    gone = asyncio.create_task(client.decide(builder("gone")))
    await pool.asked(1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await pool.actor.open_gate.remote()
    await pool.taken_back("gone")


async def test_a_dead_actor_is_a_reason_and_not_an_error(pool):
    client = pool.client()
    await client.pool(60)
    await pool.kill_actor()
    outcomes = [await client.decide(builder(str(n))) for n in range(3)]
    assert outcomes == [Undecided(UNREACHABLE)] * 3
    assert client.undecided == {UNREACHABLE: 3}
    client.cancel(DecisionId("0"))
    client.rebook(DecisionId("1"), A)
    assert await client.pool(1) is None
    with pytest.raises(RouterUnreachable):
        await pool.link.call("ping")


async def test_an_actor_that_dies_while_it_is_asked_answers_for_everybody_who_waits(pool):
    client = pool.client()
    await client.pool(60)
    await pool.actor.close_gate.remote()
    asked = asyncio.create_task(client.decide(builder("asked")))
    await pool.asked(1)
    waiting = asyncio.create_task(client.decide(builder("waiting")))
    await asyncio.sleep(0)
    ray.kill(pool.actor)
    assert await asked == await waiting == Undecided(UNREACHABLE)


async def test_a_new_actor_is_found_where_the_deployment_says(pool):
    client = pool.client()
    await client.pool(60)
    await pool.kill_actor()
    assert await client.decide(builder("one")) == Undecided(UNREACHABLE)
    await pool.new_actor()
    decision = await client.decide(builder("two"))
    assert isinstance(decision, Decision)
    assert await pool.booked() == 1


async def test_a_newer_actor_is_preferred_while_the_old_one_still_lives(pool):
    old = await pool.link.call("ping")
    await pool.new_actor()
    epoch = await eventually(lambda: pool.link.call("ping"), lambda epoch: epoch != old)
    assert epoch == await pool.actor.ping.remote()


async def lined(link: ActorLink) -> None:
    """Wait until its direct line is up."""
    await eventually(lambda: _value(link.has_line), lambda has_line: has_line)


async def test_decisions_and_pushes_go_over_the_direct_line(pool):
    link = pool.link
    before = (await pool.actor.stats.remote()).line_calls
    assert isinstance(await pool.client().decide(builder("one")), Decision)
    reply = await link.call("push", WorkerPush(A, 1, 1))
    assert (reply.applied_seq, reply.need) == (1, "ok")
    stats = await pool.actor.stats.remote()
    assert (stats.lines, stats.line_calls - before) == (1, 2)
    assert [row.by_line for row in await pool.actor.workers.remote()] == [True]


async def test_what_the_actor_refuses_is_no_reason_to_give_it_up(pool):
    link = pool.link
    bad = WorkerPush(B, 1, 0, table=True, contract=replace(CONTRACT, block_size=0))
    for _ in range(2):
        with pytest.raises(RouterUnreachable, match="ContractRefused"):
            await link.call("push", bad)
        assert link.is_up
        link._dialer.hang_up()  # the second time by Ray


async def test_a_line_that_breaks_costs_no_decision_and_comes_back(pool):
    link, client = pool.link, pool.client()
    await client.pool(60)
    await pool.actor.close_gate.remote()
    asked = asyncio.create_task(client.decide(builder("asked")))
    await pool.asked(1)
    link._dialer.line.abort()
    await pool.asked(2)  # the same again, by Ray
    await pool.actor.open_gate.remote()
    decision = await asked
    assert isinstance(decision, Decision)
    await eventually(pool.booked, lambda booked: booked == 1)
    await lined(link)


async def test_a_dead_actor_is_noticed_by_its_line_though_nobody_calls(pool):
    await pool.kill_actor()
    await eventually(lambda: _value(pool.link.is_up), lambda is_up: not is_up)


async def test_without_a_line_everything_goes_by_ray(start_actor):
    async with linked(directory := Directory()) as link:
        actor = start_actor(RouterActor, name="link:off", line="off")
        await actor.start.remote([])
        await Channel(actor, A).join(KEYS)
        directory.name = "link:off"
        assert await link.wait_up(60)
        assert isinstance(await RouterClient(link, budget_s=PATIENT_S).decide(builder("one")), Decision)
        assert (await link.call("push", WorkerPush(A, 1, 1))).need == "ok"
        stats = await actor.stats.remote()
        assert (stats.lines, stats.line_calls, link.has_line) == (0, 0, False)


async def test_the_link_goes_on_looking_while_the_deployment_is_away(start_actor):
    async with linked(directory := Directory()) as link:
        await eventually(lambda: _value(directory.looks), lambda looks: looks > 1)
        assert not await link.wait_up(0.01)
        actor = start_actor(RouterActor, name="link:late")
        epoch = await actor.start.remote([])
        directory.name = "link:late"
        assert await link.wait_up(60)
        assert await link.call("ping") == epoch


async def test_without_an_actor_a_request_is_undecided_at_once():
    async with linked(Directory()) as link:
        assert await RouterClient(link, budget_s=PATIENT_S).decide(builder("one")) == Undecided(UNREACHABLE)


async def _value(value: int) -> int:
    return value


async def test_a_worker_that_joined_unseen_and_is_not_wanted_is_not_decided(pool: Pool) -> None:
    """A replica registers before Serve routes to it: only a fresh look at the pool can exclude it."""
    client = pool.client()
    assert isinstance(await client.decide(builder("first")), Decision)
    await Channel(pool.actor, B).join(KEYS)
    unwanted = builder("second", exclude=(B,))

    def build(seen: Any) -> Any:
        return replace(unwanted(seen), exclude=tuple(w for w in seen.contracts if w == B), tie_key=0)

    for number in range(8):
        await Channel(pool.actor, A, epoch=100 + number).join()  # A holds nothing: B is the cheaper one
        client = pool.client()
        client._pool = replace(await pool.actor.pool.remote(), version=-1, contracts={A: CONTRACT})
        decision = await client.decide(build)
        assert isinstance(decision, Decision)
        assert decision.worker == A
    statuses = {row.worker: row for row in await pool.actor.workers.remote()}
    assert statuses[B].load.active_requests == 0

"""The router actor in its own process: the core's rules hold through Ray."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.calls import StalePool, Undecided
from router.core import ContractRefused
from sightline_types import (
    Decision,
    DecisionId,
    DecisionReason,
    DegradeReason,
    KeyScheme,
    KeySpec,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
)
from tests.integration.worker import CONTRACT, KEYS, A, B, C, Channel, eventually, packed, query

ONE = DecisionId("one")


async def status(actor, worker):
    return next(row for row in await actor.workers.remote() if row.worker == worker)


async def active(actor) -> dict:
    return {row.worker: row.load.active_requests for row in await actor.workers.remote()}


async def decide(actor, *queries):
    return await actor.decide_many.remote(queries or [query()])


async def test_a_table_registers_a_worker_and_its_blocks(start_actor):
    actor = start_actor()
    epoch = await actor.start.remote([])
    assert await Channel(actor, A).join(KEYS) == PushReply(epoch, 0, "ok")
    assert await actor.roster.remote() == [A]
    assert (await status(actor, A)).contract == CONTRACT
    assert await actor.resident_keys.remote(A) == packed(KEYS)


async def test_requests_of_one_call_are_decided_in_order(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    await Channel(actor, A).join()
    await Channel(actor, B).join(KEYS)
    decisions = await decide(actor, *(query(name) for name in ("one", "two", "three")))
    assert [decision.decision_id for decision in decisions] == ["one", "two", "three"]
    assert all(isinstance(decision, Decision) for decision in decisions)
    assert (decisions[0].worker, decisions[0].predicted_cached_tokens) == (B, 96)
    assert decisions[1].chosen.wait_ms >= decisions[0].chosen.wait_ms
    assert sum((await active(actor)).values()) == 3


async def test_nobody_in_the_pool_is_no_worker(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    assert await decide(actor) == [Undecided(DegradeReason.NO_WORKER)]


async def test_a_worker_of_another_block_size_makes_the_keys_stale(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    await Channel(actor, A).join()
    await Channel(actor, B).join(contract=replace(CONTRACT, block_size=32))
    [answer] = await decide(actor)
    assert isinstance(answer, StalePool)
    assert answer.pool.contracts[B].spec == KeySpec(KeyScheme.VLLM, 32)
    assert await active(actor) == {A: 0, B: 0}


async def test_a_gap_asks_for_the_table_and_the_table_closes_it(start_actor):
    actor = start_actor()
    epoch = await actor.start.remote([])
    channel = Channel(actor, A)
    await channel.join(KEYS[:2])
    channel.seq += 1  # a lost message
    assert await channel.store(9) == PushReply(epoch, 0, "table")
    assert await actor.resident_keys.remote(A) == packed(KEYS[:2])
    assert (await channel.join(KEYS)).need == "ok"
    assert await actor.resident_keys.remote(A) == packed(KEYS)


async def test_a_new_actor_asks_a_known_worker_for_its_table(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    assert (await Channel(actor, A, seq=41).store(9)).need == "table"
    assert await actor.roster.remote() == []


async def test_a_contract_that_cannot_be_served_is_refused_to_the_worker(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    with pytest.raises(ContractRefused):
        await Channel(actor, A).join(contract=replace(CONTRACT, block_size=0))
    assert await actor.roster.remote() == []


async def test_a_restarted_actor_decides_when_its_roster_has_sent_its_tables(start_actor):
    actor = start_actor(warm_timeout_s=3600)
    await actor.start.remote([A, B])
    assert await decide(actor) == [Undecided(DegradeReason.ROUTER_UNREACHABLE)]
    await Channel(actor, A).join()
    assert await decide(actor) == [Undecided(DegradeReason.ROUTER_UNREACHABLE)]
    await Channel(actor, B).join(KEYS)
    [decision] = await decide(actor)
    assert decision.worker == B


async def test_a_restarted_actor_does_not_wait_for_late_workers_for_ever(start_actor):
    actor = start_actor(warm_timeout_s=0.5)
    await actor.start.remote([A, B])
    await Channel(actor, A).join()

    async def ask():
        return (await decide(actor))[0]

    decision = await eventually(ask, lambda answer: isinstance(answer, Decision))
    assert decision.reason is DecisionReason.ONLY_WORKER


async def test_workers_still_awaited_stay_on_the_roster(start_actor):
    actor = start_actor(warm_timeout_s=3600)
    await actor.start.remote([A, B])
    await Channel(actor, C).join()
    assert sorted(await actor.roster.remote()) == [A, B, C]


async def test_a_cancelled_decision_takes_its_booking_back(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    await Channel(actor, A).join()
    await decide(actor)
    assert (await status(actor, A)).expected_blocks == len(KEYS)
    await actor.cancel.remote([ONE, DecisionId("unknown")])
    row = await status(actor, A)
    assert (row.load.active_requests, row.load.prefill_tokens, row.expected_blocks) == (0, 0, 0)


async def test_a_rebooked_decision_moves_load_and_expected_blocks(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    await Channel(actor, A).join(KEYS)
    await Channel(actor, B).join()
    await decide(actor)
    assert await active(actor) == {A: 1, B: 0}
    await actor.rebook.remote(ONE, B)
    assert await active(actor) == {A: 0, B: 1}
    row = await status(actor, B)
    assert (row.load.prefill_tokens, row.expected_blocks) == (100, len(KEYS))
    receipt = await actor.receipt.remote(ONE)
    assert (receipt.decision.worker, receipt.decision.reason) == (B, DecisionReason.FELL_OPEN)


async def test_the_end_of_a_request_settles_its_receipt(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    channel = Channel(actor, A)
    await channel.join(KEYS)
    await decide(actor)
    await channel.say(LifecycleEvent(LifecycleKind.END, ONE, cached_tokens=96, prompt_tokens=100))
    receipt = await actor.receipt.remote(ONE)
    assert (receipt.outcome.predicted_tokens, receipt.outcome.cached_tokens) == (96, 96)
    assert await active(actor) == {A: 0}


async def test_a_booking_that_no_replica_takes_up_runs_out_by_itself(start_actor):
    actor = start_actor(lease_start_s=0.1)
    await actor.start.remote([])
    await Channel(actor, A).join()
    await decide(actor)
    await eventually(lambda: active(actor), lambda rows: rows == {A: 0})


async def test_a_forgotten_worker_is_in_nobodys_way(start_actor):
    actor = start_actor()
    await actor.start.remote([])
    await Channel(actor, A).join(KEYS)
    await Channel(actor, B).join()
    await actor.forget.remote(A)
    [decision] = await decide(actor)
    assert (decision.worker, decision.reason) == (B, DecisionReason.ONLY_WORKER)

"""The `Router` deployment in Serve: it owns an actor, replaces it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray import serve
from ray.util import list_named_actors

from deployments.router import WATCH_PERIOD_S, Router, finder
from router.calls import Undecided
from router.client import RouterClient
from router.config import RouterConfig
from router.link import ActorAddress, ActorLink
from sightline_types import Decision, DecisionId, DegradeReason, LifecycleEvent, LifecycleKind, WorkerId
from tests.integration.worker import KEYS, A, B, Channel, builder, eventually, query

APP = "control"


#: By then the deployment has mostly asked its new actor; no test fails where it has not.
ASKED_S = 6 * WATCH_PERIOD_S


@contextmanager
def running(app: str) -> Iterator[Any]:
    """An application of the control plane alone; its actor waits for its roster for ever."""
    deployment: Any = serve.deployment(Router, name="Router").options(
        ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=5
    )
    config = RouterConfig(warm_timeout_s=3600.0, worker_silence_s=3600.0)
    yield serve.run(deployment.bind(config), name=app, route_prefix=None)
    if app in serve.status().applications:
        serve.delete(app)


@pytest.fixture(scope="module")
def application(serve_session: None) -> Iterator[Any]:
    with running(APP) as router:
        yield router


@pytest_asyncio.fixture
async def router(application: Any) -> Any:
    """The deployment, with an empty pool."""
    actor = await actor_at(await application.address.remote())
    roster = await actor.roster.remote()
    for worker in roster:
        await actor.forget.remote(worker)
    await seen(application)
    return application


async def seen(router: Any, *workers: WorkerId) -> None:
    """Wait until the deployment has asked its actor, and heard of these workers alone."""
    await eventually(lambda: _await(router.roster.remote()), lambda roster: set(roster) == set(workers))


async def actor_at(address: ActorAddress) -> Any:
    return await asyncio.to_thread(ray.get_actor, address.name, namespace=address.namespace)


async def our_actors(app: str = APP) -> list[str]:
    rows = await asyncio.to_thread(list_named_actors, all_namespaces=True)
    return [row["name"] for row in rows if row["name"].startswith(f"sightline:{app}:")]


async def killed(router: Any) -> Any:
    """Kill the actor; the handle of the one that replaces it."""
    before = await router.address.remote()
    ray.kill(await actor_at(before))
    after = await eventually(lambda: _await(router.address.remote()), lambda address: address != before)
    return await actor_at(after)


async def _await(response: Any) -> Any:
    return await response


async def test_the_actor_is_where_the_deployment_says_and_is_named_after_it(router):
    address = await router.address.remote()
    assert address.name.startswith(f"sightline:{APP}:engine:")
    assert await our_actors() == [address.name]
    assert isinstance(await (await actor_at(address)).ping.remote(), int)


async def test_workers_and_receipts_are_answered_for_the_actor(router):
    actor = await actor_at(await router.address.remote())
    await Channel(actor, A).join(KEYS)
    [decision] = await actor.decide_many.remote([query()])
    [row] = await router.workers.remote()
    assert (row.worker, row.num_blocks, row.load.active_requests) == (A, 6, 1)
    assert (await router.receipt.remote(DecisionId("one"))).decision == decision
    assert await router.receipt.remote(DecisionId("unknown")) is None


async def test_a_dead_actor_is_replaced_and_waits_for_the_workers_it_had(router):
    actor = await actor_at(await router.address.remote())
    for worker in (A, B):
        await Channel(actor, worker).join(KEYS)
    await seen(router, A, B)
    restarts = await router.restarts.remote()
    actor = await killed(router)
    assert await router.restarts.remote() == restarts + 1
    assert await actor.decide_many.remote([query()]) == [Undecided(DegradeReason.ROUTER_UNREACHABLE)]
    assert await router.workers.remote() == ()
    for worker in (A, B):
        assert (await Channel(actor, worker, seq=7).store(9)).need == "table"
        await Channel(actor, worker, seq=8).join(KEYS)
    assert isinstance((await actor.decide_many.remote([query()]))[0], Decision)


async def test_an_actor_that_dies_while_it_warms_up_passes_the_roster_on(router):
    actor = await actor_at(await router.address.remote())
    await Channel(actor, A).join(KEYS)
    await seen(router, A)
    await killed(router)
    await asyncio.sleep(ASKED_S)
    actor = await killed(router)
    assert await actor.decide_many.remote([query()]) == [Undecided(DegradeReason.ROUTER_UNREACHABLE)]
    assert await actor.roster.remote() == [A]


async def test_a_client_follows_the_actor_through_its_restart(router):
    link = ActorLink(finder(router))
    link.start()
    try:
        assert await link.wait_up(60)
        client = RouterClient(link, budget_s=30)
        assert await client.decide(builder("one")) == Undecided(DegradeReason.NO_WORKER)
        actor = await killed(router)
        await Channel(actor, A).join(KEYS)
        decision = await eventually(
            lambda: client.decide(builder("two")), lambda outcome: isinstance(outcome, Decision)
        )
        assert decision.worker == A
    finally:
        await link.close()


async def test_a_lost_control_plane_comes_back_with_an_actor_of_its_own(router):
    before = await router.address.remote()
    named = list_named_actors(all_namespaces=True)
    [replica] = [row for row in named if row["name"].startswith(f"SERVE_REPLICA::{APP}#")]
    ray.kill(ray.get_actor(replica["name"], namespace=replica["namespace"]))

    async def address() -> ActorAddress:
        try:
            return await router.address.remote()
        except ray.exceptions.RayError:
            return before

    after = await eventually(address, lambda address: address != before)
    assert await (await actor_at(after)).ping.remote()
    assert await eventually(our_actors, lambda names: len(names) == 1) == [after.name]


@pytest.fixture
def deleted_application(application: Any) -> Iterator[Any]:
    with running("deleted") as router:
        yield router


async def test_a_deleted_application_leaves_no_actor_behind(deleted_application):
    await killed(deleted_application)
    assert len(await our_actors("deleted")) == 1
    await asyncio.to_thread(serve.delete, "deleted")
    assert await eventually(lambda: our_actors("deleted"), lambda names: not names) == []
    assert len(await our_actors()) == 1  # the neighbour keeps its own


async def test_settings_change_live_and_nothing_that_is_known_is_lost(router):
    actor = await actor_at(await router.address.remote())
    channel = Channel(actor, A)
    await channel.join(KEYS)
    await actor.decide_many.remote([query()])
    await router.reconfigure.remote({"policy": "least_loaded", "prefill_ms_per_token": 1.5})
    stats, [worker] = await actor.stats.remote(), await actor.workers.remote()
    assert (stats.policy, stats.open_requests, worker.num_blocks) == ("least_loaded", 1, len(KEYS))
    assert worker.rates.prefill_ms_per_token == 1.5
    after = await killed(router)
    assert (await after.stats.remote()).policy == "least_loaded", "the next actor has them, too"
    await router.reconfigure.remote({})
    assert (await after.stats.remote()).policy == "cost"


async def test_a_distrusted_worker_is_trusted_again_by_an_operators_word(router):
    actor = await actor_at(await router.address.remote())
    channel = Channel(actor, A)
    await channel.join(KEYS)
    for name in ("one", "two"):
        [decision] = await actor.decide_many.remote([query(name)])
        end = LifecycleEvent(LifecycleKind.END, decision.decision_id, 96, 101)
        await channel.say(end)
    [worker] = await actor.workers.remote()
    assert worker.reasons == (DegradeReason.LENGTH_DISTRUST,)
    assert decision.chosen.overlap_blocks == 0
    assert decision.chosen.shadow_blocks == 6
    assert await router.trust.remote(A) == ("",)
    [worker] = await actor.workers.remote()
    assert worker.reasons == ()
    assert await router.trust.remote(B) is None

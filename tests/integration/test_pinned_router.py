"""The pinned request router inside Serve: three roomy replicas, and two that take one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig

from router.live import LiveReplicas, live_replicas
from router.pinned import Pin, rank_by_rendezvous
from tests.integration.fake_engine import Caller, FakeEngine
from tests.integration.worker import eventually

APP = "pinned"


class Engines:
    """A fake engine deployment, called from this process."""

    def __init__(self, name: str, count: int) -> None:
        handle: Any = serve.get_deployment_handle(name, APP)
        self._generate = handle.options(stream=True).generate
        self._count = count
        self.live: LiveReplicas = live_replicas(name, APP)

    async def served(self, pin: Any = None, request: str = "") -> str:
        """Who took the request. TimeoutError where nobody answers."""
        async with asyncio.timeout(240):
            messages = [message async for message in self._generate.remote(request, None, pin=pin)]
        return str(messages[0])

    @asynccontextmanager
    async def held(self, pin: Pin) -> AsyncIterator[str]:
        """A request that stays at its replica meanwhile; yields who took it."""
        stream = self._generate.remote("hold", None, pin=pin)
        try:
            yield await anext(stream)
        finally:
            stream.cancel()

    async def replicas(self) -> list[str]:
        """All replicas, as the router in this process knows them."""
        await self.served()
        known = await eventually(self._known, lambda known: len(known) == self._count)
        return sorted(known)

    async def _known(self) -> frozenset[str]:
        return self.live.ids or frozenset()


@pytest.fixture(scope="module")
def application(serve_session: None) -> Iterator[Any]:
    wide = _deployment("Wide", num_replicas=3, max_ongoing_requests=100)
    narrow = _deployment("Narrow", num_replicas=2, max_ongoing_requests=1)
    caller: Any = serve.deployment(Caller).options(ray_actor_options={"num_cpus": 0})
    yield serve.run(caller.bind(wide, narrow), name=APP, route_prefix=None)
    serve.delete(APP)


def _deployment(name: str, **options: Any) -> Any:
    return (
        serve.deployment(FakeEngine, name=name)
        .options(
            request_router_config=RequestRouterConfig(request_router_class="router.pinned.PinnedRouter"),
            ray_actor_options={"num_cpus": 0},
            graceful_shutdown_timeout_s=1,
            **options,
        )
        .bind()
    )


@pytest.fixture
def wide(application: Any) -> Engines:
    return Engines("Wide", 3)


@pytest.fixture
def narrow(application: Any) -> Engines:
    return Engines("Narrow", 2)


async def test_a_pinned_request_goes_to_the_named_replica(wide):
    for replica in await wide.replicas():
        pin = Pin(tie_key=7, ranked=(replica,))
        assert {await wide.served(pin) for _ in range(20)} == {replica}


async def test_concurrent_pinned_requests_go_to_the_named_replica(wide):
    wanted = (await wide.replicas()) * 8
    pins = [Pin(tie_key=7, ranked=(replica,)) for replica in wanted]
    assert await asyncio.gather(*(wide.served(pin) for pin in pins)) == wanted


async def test_a_pin_to_a_lost_replica_falls_open_to_the_next_on_the_list(wide):
    _, _, last = await wide.replicas()
    pin = Pin(tie_key=7, ranked=("gone", last))
    assert {await wide.served(pin) for _ in range(5)} == {last}


async def test_a_pin_to_lost_replicas_only_is_still_served(wide):
    replicas = await wide.replicas()
    assert await wide.served(Pin(tie_key=7, ranked=("gone", "lost"))) in replicas


async def test_without_a_decision_the_tie_key_names_the_replica(wide):
    queues = dict.fromkeys(await wide.replicas(), 0)
    for key in range(6):
        home = rank_by_rendezvous(key, queues)[0]
        assert {await wide.served(Pin(tie_key=key)) for _ in range(5)} == {home}


async def test_a_request_without_a_pin_is_served(wide):
    assert await wide.served() in await wide.replicas()


async def test_an_excluded_replica_is_passed_over_even_when_it_was_decided(wide):
    first, second, third = await wide.replicas()
    pin = Pin(tie_key=7, ranked=(first, second), exclude=(first,))
    assert {await wide.served(pin) for _ in range(5)} == {second}
    pin = Pin(tie_key=7, exclude=(first, third))
    assert {await wide.served(pin) for _ in range(5)} == {second}


async def test_excluded_replicas_serve_when_there_is_no_other(wide):
    replicas = await wide.replicas()
    assert await wide.served(Pin(tie_key=7, exclude=tuple(replicas))) in replicas


@pytest.mark.parametrize(
    "pin",
    [
        "a string",
        42,
        ["a", "list"],
        {"ranked": ()},
        Pin(tie_key="no number"),
        Pin(tie_key=7, ranked=None),
        Pin(tie_key=7, ranked=([],)),
        Pin(tie_key=7, exclude=5),
    ],
    ids=repr,
)
async def test_a_pin_of_a_wrong_type_does_not_stop_a_request(wide, pin):
    assert await wide.served(pin) in await wide.replicas()


async def test_many_calls_inside_one_request_are_all_answered(application, wide):
    wanted = [*(await wide.replicas()) * 3][:8]
    async with asyncio.timeout(240):
        served = await application.fan_out.remote([Pin(tie_key=7, ranked=(r,)) for r in wanted])
    assert served == wanted


async def test_a_full_replica_is_not_waited_for(narrow):
    first, second = await narrow.replicas()
    pin = Pin(tie_key=7, ranked=(first, second))
    async with narrow.held(pin) as holder:
        assert holder == first
        assert await narrow.served(pin) == second


async def test_a_full_replica_is_not_waited_for_without_a_decision_either(narrow):
    replicas = await narrow.replicas()
    pin = Pin(tie_key=7)
    async with narrow.held(pin) as holder:
        [other] = set(replicas) - {holder}
        assert await narrow.served(pin) == other


async def test_when_all_are_full_a_request_waits_for_the_first_that_is_free(narrow):
    first, second = await narrow.replicas()
    async with narrow.held(Pin(tie_key=7, ranked=(first,))) as one:
        async with narrow.held(Pin(tie_key=7, ranked=(second,))) as other:
            assert {one, other} == {first, second}
            waiting = asyncio.create_task(narrow.served(Pin(tie_key=7, ranked=(first, second))))
            await asyncio.sleep(0.3)
            assert not waiting.done()
        assert await waiting == second


async def test_the_live_replicas_follow_a_death_and_its_replacement(narrow):
    dead, _ = await narrow.replicas()
    with pytest.raises(Exception, match="died"):
        await narrow.served(Pin(tie_key=7, ranked=(dead,)), "die")
    replaced = await eventually(narrow._known, lambda known: len(known) == 2 and dead not in known)
    assert await narrow.served(Pin(tie_key=7, ranked=(dead,))) in replaced


async def test_nothing_is_known_of_a_deployment_that_this_process_never_called():
    assert live_replicas("Unheard", APP).ids is None

"""The router actor's client: one in every ingress replica, one inside every relay.

`ActorLink` finds the actor through the `Router` deployment and finds it again when it dies.
`RouterClient` packs all requests that wait at one moment into one actor call, gives each of them a
time budget, and never raises: without an answer in time the request goes where the pinned router
sends it, by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import pickle
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from router.actor import Outcome, Refusal, StalePool, Undecided
from router.core import PoolView
from sightline_types import Decision, DecisionId, DegradeReason, RouteQuery, WorkerId

__all__ = ["ActorAddress", "ActorLink", "RouterClient", "RouterUnreachable"]

log = logging.getLogger("sightline.router")

#: Between two looks for a newer actor (a rolling update of `Router` has two for a moment).
REFRESH_PERIOD_S = 3.0
#: Between two tries while there is no actor.
RETRY_PERIOD_S = 0.25
#: Calls under way at most, so that the actor decides while its last answers are handed out; and how many
#: requests one of them takes, so that many waiting ones are not a single call.
CALLS, REQUESTS_A_CALL = 2, 32
#: How often a request is decided anew because the pool changed under it.
ROUNDS = 3


class RouterUnreachable(Exception):
    """The router actor cannot be found, or died while it was asked."""


@dataclass(frozen=True, slots=True)
class ActorAddress:
    """Where the router actor is registered in Ray."""

    name: str
    namespace: str


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a background task outside of any request.

    In an empty context: a Serve call made in a request's context takes over that request's internal
    id, and two calls with one id disturb each other in the request router.
    """
    return asyncio.get_running_loop().create_task(coroutine, context=contextvars.Context())


class ActorLink:
    """A handle to the pool's router actor, kept fresh in the background.

    find: asks the `Router` deployment for the newest actor's address. May raise.
    """

    def __init__(self, find: Callable[[], Awaitable[ActorAddress]]) -> None:
        self._find = find
        self._address: ActorAddress | None = None
        self._actor: ActorHandle[Any] | None = None
        self._wake = asyncio.Event()
        self._found = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeper = spawn(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper

    @property
    def is_up(self) -> bool:
        return self._actor is not None

    async def wait_up(self, timeout_s: float) -> bool:
        """Whether an actor was found within `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._found.wait()
        return self.is_up

    async def call(self, method: str, *args: Any) -> Any:
        """Call the actor.

        Raises:
            RouterUnreachable: there is no actor, or it died meanwhile.
        """
        actor = self._actor
        if actor is None:
            raise RouterUnreachable("no router actor")
        try:
            return await getattr(actor, method).remote(*args)
        except RayError as error:
            self._lost(actor)
            raise RouterUnreachable(f"{type(error).__name__} in {method}") from error

    def _lost(self, actor: ActorHandle[Any]) -> None:
        if self._actor is actor:
            self._actor = None
            self._found.clear()
        self._wake.set()

    async def _keep(self) -> None:
        while True:
            await self._look()
            self._wake.clear()
            period = REFRESH_PERIOD_S if self.is_up else RETRY_PERIOD_S
            # Not `wait_for`: in Python 3.11 it can swallow the cancellation that ends this task.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._wake.wait()
            if not self.is_up:
                await asyncio.sleep(RETRY_PERIOD_S)

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(10.0):
                address = await self._find()
            if address == self._address and self._actor is not None:
                return
            loop = asyncio.get_running_loop()
            actor = await loop.run_in_executor(None, _get_actor, address)
            async with asyncio.timeout(10.0):
                await actor.ping.remote()
        except (RayError, RayServeException, ValueError, TimeoutError, RuntimeError) as error:
            # Nobody is served worse for it: requests fall open by name until the next look.
            log.debug("router actor not found yet: %s: %s", type(error).__name__, error)
            return
        self._address, self._actor = address, actor
        self._found.set()


def _get_actor(address: ActorAddress) -> ActorHandle[Any]:
    return ray.get_actor(address.name, namespace=address.namespace)


@dataclass(slots=True, eq=False)
class _Waiting:
    query: RouteQuery
    answer: asyncio.Future[Outcome]


class RouterClient:
    """Asks the actor for decisions, in batches, within a budget.

    budget_s: the longest that a request waits for its decision.
    """

    def __init__(self, link: ActorLink, *, budget_s: float, lease_s: float = 30.0) -> None:
        self._link = link
        self._budget_s = budget_s
        self._waiting: list[_Waiting] = []
        self._senders = 0
        self._pool: PoolView | None = None
        self._pool_lock = asyncio.Lock()
        self._lease_s = lease_s
        self._held: set[DecisionId] = set()
        self._renewer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.undecided: dict[DegradeReason, int] = {}

    async def decide(self, build: Callable[[PoolView], RouteQuery]) -> Decision | Undecided | Refusal:
        """A decision, or why there is none. Never raises, never outlives the budget.

        build: makes the query for the contracts in a pool; asked again when the pool has changed.
        """
        deadline = time.monotonic() + self._budget_s
        try:
            outcome: Decision | Undecided | Refusal = await self._decide(build, deadline)
        except RouterUnreachable:
            outcome = Undecided(DegradeReason.ROUTER_UNREACHABLE)
        except TimeoutError:
            outcome = Undecided(DegradeReason.DECISION_TIMEOUT)
        if isinstance(outcome, Undecided):
            self.undecided[outcome.reason] = self.undecided.get(outcome.reason, 0) + 1
        return outcome

    async def _decide(
        self, build: Callable[[PoolView], RouteQuery], deadline: float
    ) -> Decision | Undecided | Refusal:
        pool = self._pool or await self._first_pool(deadline)
        for _ in range(ROUNDS):
            outcome = await self._ask(build(pool), deadline)
            if isinstance(outcome, StalePool):
                self._pool = pool = outcome.pool
                continue
            if isinstance(outcome, Undecided | Refusal) or outcome.pool_version == pool.version:
                return outcome
            pool = await self.pool(deadline - time.monotonic()) or pool
            if outcome.worker not in build(pool).exclude:
                return outcome
            # It joined meanwhile, and the asker does not want it: Serve does not route to it yet.
            await self._link.call("cancel", [outcome.decision_id])
        return Undecided(DegradeReason.CONTRACT_MISSING)

    async def _ask(self, query: RouteQuery, deadline: float) -> Outcome:
        waiting = _Waiting(query, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._senders < CALLS:
            self._senders += 1
            self._background(self._send())
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waiting.answer
        except (TimeoutError, asyncio.CancelledError):
            self._give_up(waiting)
            raise

    def _give_up(self, waiting: _Waiting) -> None:
        """Nobody waits for this answer any more; one that came in the same moment is taken back."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        answer = waiting.answer
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None:
            self._take_back(answer.result())

    async def _send(self) -> None:
        """One call after the other; what arrives meanwhile goes with the next."""
        try:
            while self._waiting:
                batch = [w for w in self._waiting[:REQUESTS_A_CALL] if not w.answer.done()]
                del self._waiting[:REQUESTS_A_CALL]
                if batch:
                    await self._call(batch)
        finally:
            # Before this task ends: who asks in between must not count on it.
            self._senders -= 1

    async def _call(self, batch: list[_Waiting]) -> None:
        try:
            queries = pickle.dumps([waiting.query for waiting in batch], pickle.HIGHEST_PROTOCOL)
            answers = pickle.loads(await self._link.call("decide_packed", queries))
        except RouterUnreachable as error:
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
                    # The asker may be going: an exception that nobody takes is not an error here.
                    waiting.answer.exception()
            return
        for waiting, answer in zip(batch, answers, strict=True):
            self._hand_out(waiting, answer)

    def _hand_out(self, waiting: _Waiting, outcome: Outcome) -> None:
        if waiting.answer.done():
            self._take_back(outcome)
        else:
            waiting.answer.set_result(outcome)

    def _take_back(self, outcome: Outcome) -> None:
        if isinstance(outcome, Decision):
            self.cancel(outcome.decision_id)

    @property
    def known_pool(self) -> PoolView | None:
        """The pool as last seen, however old; None before the first answer."""
        return self._pool

    async def pool(self, timeout_s: float) -> PoolView | None:
        """The pool as last seen; None where no actor answers in time."""
        try:
            async with asyncio.timeout(timeout_s):
                self._pool = await self._link.call("pool")
        except (RouterUnreachable, TimeoutError):
            return None
        return self._pool

    async def _first_pool(self, deadline: float) -> PoolView:
        """One call, however many requests wait for it."""
        async with asyncio.timeout(deadline - time.monotonic()), self._pool_lock:
            if self._pool is None:
                self._pool = await self._link.call("pool")
            return self._pool

    def cancel(self, decision_id: DecisionId) -> None:
        """Undo a decision, in the background."""
        self._background(_quietly(self._link.call("cancel", [decision_id])))

    def rebook(self, decision_id: DecisionId, worker: WorkerId) -> None:
        """Tell the actor who really serves, in the background."""
        self._background(_quietly(self._link.call("rebook", decision_id, worker)))

    def forget_replica(self, replica: str) -> None:
        """Tell the actor that a replica died, in the background."""
        self._background(_quietly(self._link.call("forget_replica", replica)))

    def hold(self, decision_id: DecisionId) -> None:
        """Renew a booking while no replica has taken the request; it ends with `let_go`, and with us."""
        self._held.add(decision_id)
        if self._renewer is None or self._renewer.done():
            self._renewer = spawn(self._renew_held())

    def let_go(self, decision_id: DecisionId) -> None:
        """A replica has the request, or it is over. Idempotent."""
        self._held.discard(decision_id)

    async def _renew_held(self) -> None:
        """Ends when nothing is held."""
        while self._held:
            await asyncio.sleep(self._lease_s / 3)
            if self._held:
                await _quietly(self._link.call("renew", list(self._held)))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(call: Coroutine[Any, Any, Any]) -> None:
    """An actor that is gone has nothing left to undo."""
    with contextlib.suppress(RouterUnreachable):
        await call

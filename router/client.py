"""The router actor's client: one in every ingress replica.

It packs all requests that wait at one moment into one actor call, gives each of them a time budget,
and never raises: without an answer in time the request goes where the pinned router sends it, by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from router.calls import Outcome, Refusal, StalePool, Undecided
from router.core import PoolView
from router.link import ActorLink, RouterUnreachable, spawn
from sightline_types import Decision, DecisionId, DegradeReason, RouteQuery, WorkerId

__all__ = ["RouterClient"]

#: Calls under way at most, so that the actor decides while its last answers are handed out; and how many
#: requests one of them takes, so that many waiting ones are not a single call.
CALLS, REQUESTS_A_CALL = 2, 32
#: How often a request is decided anew because the pool changed under it.
ROUNDS = 3


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
            queries = [waiting.query for waiting in batch]
            answers: list[Outcome] = await self._link.call("decide_many", queries)
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

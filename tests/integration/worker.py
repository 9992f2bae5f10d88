"""A worker of the pool as the router actor sees one, what it is asked, and actors that can be watched.

This module is imported in Ray's worker processes too, under this name.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from router.actor import RouterActor
from router.calls import StalePool, Undecided
from router.config import RouterConfig
from router.core import PoolView
from sightline_types import (
    Decision,
    DecisionId,
    KeyedView,
    KeyScheme,
    KeySpec,
    LifecycleEvent,
    PushReply,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

T = TypeVar("T")

NAMESPACE = "sightline-test"
A, B, C = (WorkerId(name) for name in "abc")
SPEC = KeySpec(KeyScheme.VLLM, 16)
CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "m", 4096)
KEYS = tuple(range(1, 7))


def packed(keys: Sequence[int]) -> bytes:
    return np.array(keys, dtype="<u8").tobytes()


def query(decision_id: str = "one", **changes: Any) -> RouteQuery:
    """100 tokens in 6 full blocks, text only."""
    plain = RouteQuery(DecisionId(decision_id), {SPEC: KeyedView(packed(KEYS))}, num_tokens=100, tie_key=7)
    return replace(plain, **changes)


def builder(decision_id: str, **changes: Any) -> Callable[[PoolView], RouteQuery]:
    """The query, with the same keys for every spec that the pool has."""

    def build(pool: PoolView) -> RouteQuery:
        specs = {contract.spec for contract in pool.contracts.values()}
        return query(decision_id, views={spec: KeyedView(packed(KEYS)) for spec in specs}, **changes)

    return build


@dataclass(slots=True)
class Channel:
    """The ordered channel of one worker to a router actor."""

    actor: Any
    worker: WorkerId
    epoch: int = 1
    seq: int = -1

    async def join(self, held: Sequence[int] = (), contract: WorkerContract = CONTRACT) -> PushReply:
        return await self.push(TierDelta(Tier(), stored=packed(held)), table=True, contract=contract)

    async def store(self, *keys: int) -> PushReply:
        return await self.push(TierDelta(Tier(), stored=packed(keys)))

    async def say(self, event: LifecycleEvent) -> PushReply:
        return await self.push(lifecycle=(event,))

    async def push(self, *deltas: TierDelta, **more: Any) -> PushReply:
        self.seq += 1
        message = WorkerPush(self.worker, self.epoch, self.seq, deltas, **more)
        reply: PushReply = await self.actor.push.remote(message)
        return reply


class WatchedActor(RouterActor):
    """Counts the calls it gets, and decides only while its gate is open (it is, at first)."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._calls: Counter[str] = Counter()
        self._gate = asyncio.Event()
        self._gate.set()

    async def calls(self) -> Counter[str]:
        """By method; "queries" are those in all calls of decide_many."""
        return self._calls

    async def close_gate(self) -> None:
        self._gate.clear()

    async def open_gate(self) -> None:
        self._gate.set()

    async def pool(self) -> PoolView:
        self._calls["pool"] += 1
        return await super().pool()

    async def decide_many(self, queries: Sequence[RouteQuery]) -> list[Decision | Undecided | StalePool]:
        self._calls["decide_many"] += 1
        self._calls["queries"] += len(queries)
        await self._gate.wait()
        return await super().decide_many(queries)


async def eventually(ask: Callable[[], Awaitable[T]], true: Callable[[T], object]) -> T:
    """Ask until the answer is as it should be; that answer."""
    deadline = time.monotonic() + 240
    while True:
        answer = await ask()
        if true(answer):
            return answer
        assert time.monotonic() < deadline, f"still {answer}"
        await asyncio.sleep(0.05)

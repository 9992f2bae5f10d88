"""The data-parallel ranks of one engine replica: each is a worker of the pool, with a relay of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.engines import EngineRank
from router.pinned import Pin, rank_by_rendezvous
from router.relay import EventRelay
from sightline_types import WorkerId

__all__ = ["RankWorker", "ReplicaRanks", "pick_rank"]


@dataclass(frozen=True, slots=True)
class RankWorker:
    """One rank as the router knows it."""

    worker: WorkerId
    engine: EngineRank
    relay: EventRelay


class ReplicaRanks:
    """All ranks of one replica, in their order; at least one."""

    def __init__(self, ranks: Sequence[RankWorker]) -> None:
        self._ranks = tuple(ranks)

    async def start(self) -> None:
        """Catch up with every rank's events, and register each with the router actor."""
        # One by one: the first compiles the keys' kernels, which is not for two threads at once.
        for rank in self._ranks:
            await rank.relay.start()

    def pick(self, decided: WorkerId | None, pin: Pin | None) -> RankWorker:
        """Who serves a request; see `pick_rank`."""
        if len(self._ranks) == 1:
            return self._ranks[0]
        running = [rank.relay.num_running for rank in self._ranks]
        return self._ranks[pick_rank(self._ranks[0].worker.replica, running, decided, pin)]

    async def reset_prefix_caches(self) -> bool:
        """Empty every rank's cache. False where a request that runs on one of them forbids it there."""
        done = await asyncio.gather(*(_reset(rank) for rank in self._ranks))
        return all(done)

    async def leave(self) -> None:
        """Tell the router actor to forget every rank. Best effort, within a second."""
        await asyncio.gather(*(rank.relay.leave() for rank in self._ranks))

    async def close(self) -> None:
        for rank in self._ranks:
            await rank.relay.close()


async def _reset(rank: RankWorker) -> bool:
    done = await rank.engine.reset_prefix_cache()
    if done:
        rank.relay.clear()
    return done


def pick_rank(replica: str, running: Sequence[int], decided: WorkerId | None, pin: Pin | None) -> int:
    """The decided rank; where the request fell open to `replica`, the one that was best there. Without a
    decision bounded-load rendezvous on the request's key, as between replicas: equal requests meet.

    running: requests at each rank, in their order; not empty.
    """
    if decided is not None and decided.replica == replica:
        wanted: int | None = decided.dp_rank
    else:
        wanted = pin.rank_at(replica) if pin is not None else None
    if wanted is not None and wanted < len(running):
        return wanted
    ranks = {str(WorkerId(replica, rank)): rank for rank in range(len(running))}
    queues = {name: running[rank] for name, rank in ranks.items()}
    return ranks[rank_by_rendezvous(pin.tie_key if pin is not None else 0, queues)[0]]

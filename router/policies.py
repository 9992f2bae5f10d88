"""How a worker is chosen among scored candidates: by `cost`, or by a policy to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

import xxhash

from router.config import PolicyName
from router.load import WorkerLoad
from sightline_types import CandidateScore, DecisionReason, RouteQuery, WorkerId

__all__ = ["Choice", "Policy", "PoolState", "make_policy", "rendezvous"]

Choice = tuple[WorkerId, DecisionReason]

#: Costs closer than this are equal: sums of floats, not times that anybody could measure.
TIE_MS = 1e-6

_MASK64 = (1 << 64) - 1


class PoolState(Protocol):
    """What a policy may ask about the candidates, beyond their scores."""

    def load(self, worker: WorkerId) -> WorkerLoad: ...

    def block_size(self, worker: WorkerId) -> int: ...

    def decode_blocks_with_request(self, worker: WorkerId) -> int:
        """Distinct active blocks if the request went there."""
        ...


class Policy(Protocol):
    """scores: not empty. May keep a state of its own; the same calls in the same order choose the same."""

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice: ...


def make_policy(name: PolicyName, random: Random) -> Policy:
    """random: only `power_of_two` draws from it."""
    policies: dict[PolicyName, Callable[[], Policy]] = {
        "cost": LowestCost,
        "kv_blocks": KvBlocks,
        "round_robin": RoundRobin,
        "power_of_two": lambda: PowerOfTwo(random),
        "least_loaded": LeastLoaded,
        "media_sticky": MediaSticky,
    }
    return policies[name]()


def rendezvous(tie_key: int, workers: Iterable[WorkerId]) -> WorkerId:
    """The worker with the highest hash: the same for the same key whatever the order, and when another
    worker leaves.

    By replica first, with the hash of `router.pinned`, so that a request without a decision goes to the
    same replica.
    """
    seed = tie_key & _MASK64

    def rank(worker: WorkerId) -> tuple[int, str, int, int]:
        by_replica = xxhash.xxh3_64_intdigest(worker.replica.encode(), seed)
        by_worker = xxhash.xxh3_64_intdigest(str(worker).encode(), seed)
        return -by_replica, worker.replica, -by_worker, worker.dp_rank

    return min(workers, key=rank)


class LowestCost:
    """The lowest expected time; equal ones are settled by rendezvous on the query's tie key."""

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice:
        limit = min(score.cost_ms for score in scores) + TIE_MS
        best = [score.worker for score in scores if score.cost_ms <= limit]
        if len(best) == 1:
            return best[0], DecisionReason.COST
        return rendezvous(query.tie_key, best), DecisionReason.TIE


class KvBlocks:
    """Blocks to compute plus active blocks, in block units: the default logit of Dynamo 1.6.1,
    `max((active prefill tokens + request tokens) / B - overlap, 0) + decode blocks with the request`
    (lib/kv-router/src/scheduling/selector/default.rs); equal ones by rendezvous instead of at random.
    """

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice:
        logits = {score.worker: self._logit(score, query, state) for score in scores}
        lowest = min(logits.values())
        best = [worker for worker, logit in logits.items() if logit == lowest]
        return rendezvous(query.tie_key, best), DecisionReason.POLICY

    @staticmethod
    def _logit(score: CandidateScore, query: RouteQuery, state: PoolState) -> float:
        waiting = state.load(score.worker).prefill_tokens + query.num_tokens
        prefill_blocks = waiting / state.block_size(score.worker)
        return max(prefill_blocks - score.overlap_blocks, 0.0) + state.decode_blocks_with_request(
            score.worker
        )


class RoundRobin:
    """Each worker in turn, in the order of their ids."""

    def __init__(self) -> None:
        self._last: WorkerId | None = None

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice:
        workers = sorted(score.worker for score in scores)
        last = self._last
        self._last = next((w for w in workers if last is not None and w > last), workers[0])
        return self._last, DecisionReason.POLICY


class PowerOfTwo:
    """The less busy of two drawn at random."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice:
        workers = sorted(score.worker for score in scores)
        drawn = self._random.sample(workers, min(2, len(workers)))
        return min(drawn, key=lambda w: _busyness(state.load(w))), DecisionReason.POLICY


class LeastLoaded:
    """The fewest active requests, then the fewest tokens waiting; equal ones by rendezvous."""

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice:
        busyness = {score.worker: _busyness(state.load(score.worker)) for score in scores}
        lowest = min(busyness.values())
        best = [worker for worker, busy in busyness.items() if busy == lowest]
        return rendezvous(query.tie_key, best), DecisionReason.POLICY


class MediaSticky:
    """Always the same worker for the same first picture, whatever its load."""

    def choose(self, scores: Sequence[CandidateScore], query: RouteQuery, state: PoolState) -> Choice:
        return rendezvous(query.tie_key, [score.worker for score in scores]), DecisionReason.POLICY


def _busyness(load: WorkerLoad) -> tuple[int, int]:
    return load.active_requests, load.prefill_tokens + load.encode_tokens

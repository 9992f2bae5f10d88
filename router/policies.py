"""How a worker is chosen among scored candidates: by `cost`, or by a policy to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from router.columns import Rows
from router.config import RouterConfig
from router.index import CountArray
from router.scoring import cheapest
from sightline_types import DecisionReason, WorkerId

__all__ = ["Choice", "Contest", "Policy", "make_policy", "rendezvous"]

#: A candidate's row, and what settled it.
Choice = tuple[int, DecisionReason]

#: Costs closer than this are equal: sums of floats, not times that anybody could measure.
TIE_MS = 1e-6

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Contest:
    """One query's candidates.

    rows: `CANDIDATE`, shape (n,), not empty. workers: theirs, in the same order; names: of their replicas,
    encoded. Asked for by the policies that need it: loads, `WORKER` rows of the candidates; added_blocks, by
    row, the distinct active blocks that the request would add.
    """

    rows: Rows
    workers: Sequence[WorkerId]
    names: Sequence[bytes]
    loads: Callable[[], Rows]
    num_tokens: int
    tie_key: int
    added_blocks: Callable[[], CountArray]


class Policy(Protocol):
    """May keep a state of its own; the same calls in the same order choose the same."""

    def choose(self, contest: Contest) -> Choice: ...


def make_policy(config: RouterConfig, random: Random) -> Policy:
    """random: only `power_of_two`, and `cost` at a temperature above 0, draw from it."""
    policies: dict[str, Callable[[], Policy]] = {
        "cost": lambda: LowestCost(config.temperature_ms, random),
        "approximate": lambda: LowestCost(config.temperature_ms, random),
        "kv_blocks": KvBlocks,
        "round_robin": RoundRobin,
        "power_of_two": lambda: PowerOfTwo(random),
        "least_loaded": LeastLoaded,
        "media_sticky": MediaSticky,
    }
    return policies[config.policy]()


def rendezvous(tie_key: int, workers: Sequence[WorkerId], names: Sequence[bytes]) -> int:
    """The place of the worker with the highest hash: the same worker for the same key whatever the order,
    and when another one leaves.

    By replica first, with the hash of `router.pinned`, so that a request without a decision goes to the
    same replica. names: the replicas', encoded.
    """
    seed = tie_key & _MASK64
    digest = xxhash.xxh3_64_intdigest
    by_replica = [digest(name, seed) for name in names]
    highest = max(by_replica)
    if by_replica.count(highest) == 1:
        return by_replica.index(highest)
    best = [place for place, weight in enumerate(by_replica) if weight == highest]

    def rank(place: int) -> tuple[str, int, int]:
        worker = workers[place]
        return worker.replica, -digest(str(worker).encode(), seed), worker.dp_rank

    return min(best, key=rank)


def _settle(contest: Contest, best: npt.NDArray[np.intp]) -> int:
    """One of the equal rows `best`."""
    if len(best) == 1:
        return int(best[0])
    workers, names = contest.workers, contest.names
    if len(best) == len(workers):
        return rendezvous(contest.tie_key, workers, names)
    rows: list[int] = best.tolist()
    tied = rendezvous(contest.tie_key, [workers[row] for row in rows], [names[row] for row in rows])
    return rows[tied]


class LowestCost:
    """The lowest expected time; equal ones are settled by rendezvous on the query's tie key.

    temperature_ms: above 0 a worker is drawn, with the weight exp(-cost / temperature).
    """

    def __init__(self, temperature_ms: float, random: Random) -> None:
        self._temperature_ms = temperature_ms
        self._random = random

    def choose(self, contest: Contest) -> Choice:
        if self._temperature_ms > 0:
            return self._draw(contest.rows["cost_ms"]), DecisionReason.SAMPLED
        best = cheapest(contest.rows, TIE_MS)
        reason = DecisionReason.COST if len(best) == 1 else DecisionReason.TIE
        return _settle(contest, best), reason

    def _draw(self, costs: npt.NDArray[np.float64]) -> int:
        weights = np.exp((costs.min() - costs) / self._temperature_ms)
        return self._random.choices(range(len(costs)), weights.tolist())[0]


class KvBlocks:
    """Blocks to compute plus active blocks, in block units: the default logit of Dynamo 1.6.1,
    `max((active prefill tokens + request tokens) / B - overlap, 0) + decode blocks with the request`
    (lib/kv-router/src/scheduling/selector/default.rs); equal ones by rendezvous instead of at random.
    """

    def choose(self, contest: Contest) -> Choice:
        rows, loads = contest.rows, contest.loads()
        waiting = loads["prefill_tokens"] + contest.num_tokens
        prefill_blocks = np.maximum(waiting / rows["block_size"] - rows["overlap"], 0.0)
        logits = prefill_blocks + loads["decode_blocks"] + contest.added_blocks()
        return _settle(contest, np.flatnonzero(logits == logits.min())), DecisionReason.POLICY


class RoundRobin:
    """Each worker in turn, in the order of their ids."""

    def __init__(self) -> None:
        self._last: WorkerId | None = None

    def choose(self, contest: Contest) -> Choice:
        order = sorted(range(len(contest.workers)), key=contest.workers.__getitem__)
        last = self._last
        later = (row for row in order if last is not None and contest.workers[row] > last)
        row = next(later, order[0])
        self._last = contest.workers[row]
        return row, DecisionReason.POLICY


class PowerOfTwo:
    """The less busy of two drawn at random."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, contest: Contest) -> Choice:
        order = sorted(range(len(contest.workers)), key=contest.workers.__getitem__)
        drawn = self._random.sample(order, min(2, len(order)))
        busyness = list(zip(*_busyness(contest.loads()), strict=True))
        return min(drawn, key=busyness.__getitem__), DecisionReason.POLICY


class LeastLoaded:
    """The fewest active requests, then the fewest tokens waiting; equal ones by rendezvous."""

    def choose(self, contest: Contest) -> Choice:
        requests, tokens = _busyness(contest.loads())
        fewest = requests == requests.min()
        least = fewest & (tokens == tokens[fewest].min())
        return _settle(contest, np.flatnonzero(least)), DecisionReason.POLICY


class MediaSticky:
    """Always the same worker for the same first picture, whatever its load."""

    def choose(self, contest: Contest) -> Choice:
        return rendezvous(contest.tie_key, contest.workers, contest.names), DecisionReason.POLICY


def _busyness(loads: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return loads["requests"], loads["prefill_tokens"] + loads["encode_tokens"]

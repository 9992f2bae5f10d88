"""The Serve request router of the engine deployment: it sends a request where it was decided.

The call's keyword `pin` (`Pin`) names the replicas in the order of preference. Without a decision the
candidates are ranked by bounded-load rendezvous on the request's key. It never raises (an exception in a
request router leaves its request waiting for ever) and never blocks.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from router.live import live_replicas
from sightline_types import WorkerId, lean

__all__ = ["Pin", "PinnedRouter", "rank_by_rendezvous"]

log = logging.getLogger("sightline.router")

#: A replica with more than this times the mean queue is passed over by the rendezvous.
LOAD_BOUND = 1.25
#: A shorter queue is never passed over: it delays nobody, and Serve's counts may be some requests too high
#: for 10 s after a burst (2.60), which would send equal requests to different places.
SHORT_QUEUE = 4


@lean
@dataclass(frozen=True, slots=True)
class Pin:
    """Where a request should go.

    ranked: replica ids, the decided one first; empty without a decision.
    ranks: the best data-parallel rank at each of `ranked`; empty: everywhere the first.
    tie_key: 64 bits; equal requests have equal keys.
    exclude: replicas that failed this request already; taken only when there is no other.
    """

    tie_key: int
    ranked: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    @classmethod
    def towards(cls, tie_key: int, workers: Sequence[WorkerId], exclude: Sequence[WorkerId] = ()) -> Pin:
        """workers: in the order of preference; of a replica's ranks the first one counts."""
        best: dict[str, int] = {}
        for worker in workers:
            best.setdefault(worker.replica, worker.dp_rank)
        lost = tuple(dict.fromkeys(worker.replica for worker in exclude))
        return cls(tie_key, tuple(best), lost, tuple(best.values()) if any(best.values()) else ())

    def rank_at(self, replica: str) -> int | None:
        """The rank that is preferred there; None where that replica was not ranked."""
        if replica not in self.ranked:
            return None
        return self.ranks[self.ranked.index(replica)] if self.ranks else 0


class PinnedRouter(RequestRouter):
    """Ranks the decided replica first, then the others, so that a full or lost one is not waited for."""

    #: How long a replica may take to say how long its queue is, before the next one gets the request. Serve's
    #: 0.1 s (2.60) is less than a busy one needs, and the next one may have to compute what this one holds.
    queue_len_response_deadline_s = 1.0

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        live = live_replicas(self._deployment_id.name, self._deployment_id.app_name)
        live.ids = frozenset(replica.replica_id.unique_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        try:
            if pending_request is None:
                return [candidate_replicas]
            # Without it a full replica is asked again in a hot loop (Serve 2.60).
            pending_request.routing_context.should_backoff = True
            return self._rank(candidate_replicas, pending_request.kwargs.get("pin"))
        except Exception:
            log.exception("the pinned router fell back to a random order")
            return [random.sample(candidate_replicas, len(candidate_replicas))]

    def _rank(self, candidates: list[RunningReplica], pin: Pin | None) -> list[list[RunningReplica]]:
        if pin is None:
            # Of equal queues Serve takes the first in the list.
            return [random.sample(candidates, len(candidates))]
        by_id = {replica.replica_id.unique_id: replica for replica in candidates}
        queues = {rid: self._queue_length(replica) for rid, replica in by_id.items()}
        order = [rid for rid in pin.ranked if rid in by_id]
        order += [rid for rid in rank_by_rendezvous(pin.tie_key, queues) if rid not in order]
        order.sort(key=lambda rid: rid in pin.exclude)  # stable: only moves the excluded to the end
        return [[by_id[rid]] for rid in order]

    def _queue_length(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def rank_by_rendezvous(tie_key: int, queues: dict[str, int]) -> Sequence[str]:
    """Replica ids by rendezvous hash of `tie_key`; those above the load bound come last, shortest first.

    queues: requests at each replica.
    """
    if not queues:
        return []
    bound = max(SHORT_QUEUE, math.ceil(LOAD_BOUND * (sum(queues.values()) + 1) / len(queues)))
    seed = tie_key & 0xFFFF_FFFF_FFFF_FFFF
    weight = {rid: xxhash.xxh3_64_intdigest(rid.encode(), seed) for rid in queues}
    within = sorted((r for r in queues if queues[r] < bound), key=lambda r: (-weight[r], r))
    above = sorted((r for r in queues if queues[r] >= bound), key=lambda r: (queues[r], -weight[r], r))
    return [*within, *above]

"""One replica, several data-parallel ranks: who of them serves a request, and what all of them share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines import EngineRank
from deployments.ranks import RankWorker, ReplicaRanks, pick_rank
from router.pinned import Pin
from router.policies import rendezvous
from router.relay import EventRelay
from sightline_types import (
    DecisionId,
    KeyScheme,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

CONTRACT = WorkerContract("vllm", "0.32.0", 4, KeyScheme.VLLM, "tiny", 4096, publishes_events=False)
IDLE = (0, 0, 0)


class Replica:
    """Ranks without an engine. refuses: the rank that does not forget its cache."""

    def __init__(self, ranks: int, refuses: int | None = None) -> None:
        self.taken: list[WorkerPush] = []
        self.cleared: list[int] = []
        self.refuses = refuses
        self.ranks = ReplicaRanks([self._rank(number) for number in range(ranks)])

    def _rank(self, number: int) -> RankWorker:
        worker = WorkerId("r", number)
        relay = EventRelay(worker, CONTRACT, None, self._push, push_interval_s=0.001)
        relay.clear = lambda: self.cleared.append(number)  # type: ignore[method-assign]

        async def reset() -> bool:
            return number != self.refuses

        return RankWorker(worker, EngineRank(None, lambda: None, reset), relay)

    async def _push(self, message: WorkerPush) -> PushReply:
        self.taken.append(message)
        return PushReply(1, message.seq)


def test_a_request_goes_to_the_rank_it_was_decided_for() -> None:
    pin = Pin(tie_key=7, ranked=("r",), ranks=(1,))
    assert pick_rank("r", IDLE, WorkerId("r", 2), pin) == 2


def test_a_request_that_fell_open_goes_to_the_rank_that_was_best_at_this_replica() -> None:
    ranked = [WorkerId("gone", 1), WorkerId("r", 2), WorkerId("gone", 0), WorkerId("r", 0)]
    assert pick_rank("r", IDLE, ranked[0], Pin.towards(7, ranked)) == 2
    first_ranks = [WorkerId("gone"), WorkerId("r")]
    assert pick_rank("r", IDLE, first_ranks[0], Pin.towards(7, first_ranks)) == 0


def test_a_rank_that_the_replica_does_not_have_is_not_taken_at_its_word() -> None:
    assert pick_rank("r", IDLE, WorkerId("r", 3), None) in range(3)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**64 - 1), st.integers(1, 8))
def test_without_a_decision_a_request_meets_its_equals_where_a_tie_would_be_settled(
    key: int, ranks: int
) -> None:
    workers = [WorkerId("r", rank) for rank in range(ranks)]
    assert pick_rank("r", [0] * ranks, None, Pin(tie_key=key)) == rendezvous(key, workers, [b"r"] * ranks)


def test_without_a_decision_a_rank_above_the_load_bound_is_passed_over() -> None:
    assert {pick_rank("r", (50, 0), None, Pin(tie_key=key)) for key in range(32)} == {1}


def test_different_requests_without_a_decision_spread_over_the_ranks() -> None:
    assert {pick_rank("r", IDLE, None, Pin(tie_key=key)) for key in range(64)} == {0, 1, 2}


async def test_every_rank_registers_and_leaves_as_a_worker_of_its_own() -> None:
    replica = Replica(ranks=2)
    await replica.ranks.start()
    await replica.ranks.leave()
    await replica.ranks.close()
    joined = {message.worker for message in replica.taken if message.table}
    left = {message.worker for message in replica.taken if message.leaving}
    assert joined == left == {WorkerId("r", 0), WorkerId("r", 1)}


async def test_the_requests_that_run_at_a_rank_count_where_a_request_has_no_decision() -> None:
    replica = Replica(ranks=2)
    first = replica.ranks.pick(None, Pin(tie_key=7))
    for number in range(9):
        started = LifecycleEvent(LifecycleKind.STARTED, DecisionId(f"{number:016x}"))
        first.relay.report(started)
    assert replica.ranks.pick(None, Pin(tie_key=7)) is not first


async def test_a_flush_empties_every_rank_and_says_where_one_did_not() -> None:
    whole, partly = Replica(ranks=3), Replica(ranks=3, refuses=1)
    assert await whole.ranks.reset_prefix_caches()
    assert not await partly.ranks.reset_prefix_caches()
    assert (sorted(whole.cleared), sorted(partly.cleared)) == ([0, 1, 2], [0, 2])

"""How a worker is chosen among scored candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router.load import WorkerLoad
from router.policies import make_policy, rendezvous
from sightline_types import CandidateScore, DecisionId, DecisionReason, RouteQuery, WorkerId

A, B, C = (WorkerId(name) for name in "abc")
WORKERS = (A, B, C)


@dataclass
class State:
    loads: dict[WorkerId, WorkerLoad] = field(default_factory=dict)
    decode_blocks: dict[WorkerId, int] = field(default_factory=dict)

    def load(self, worker):
        return self.loads.get(worker, WorkerLoad())

    def block_size(self, worker):
        return 16

    def decode_blocks_with_request(self, worker):
        return self.decode_blocks.get(worker, 0)


def scores(*costs: float, overlaps: tuple[int, ...] = (0, 0, 0)) -> list[CandidateScore]:
    return [
        CandidateScore(worker, overlap, overlap, 10, 0, 0, cost, 0.0, 0.0, 0.0)
        for worker, cost, overlap in zip(WORKERS, costs, overlaps, strict=False)
    ]


def query(tie_key: int = 0, num_tokens: int = 160) -> RouteQuery:
    return RouteQuery(DecisionId("d"), {}, num_tokens, tie_key=tie_key)


def chosen(name, candidates, asked=None, state=None, random=None):
    return make_policy(name, random or Random(1)).choose(candidates, asked or query(), state or State())


def test_the_lowest_cost_wins():
    assert chosen("cost", scores(3.0, 1.0, 2.0)) == (B, DecisionReason.COST)


def test_equal_costs_are_settled_by_rendezvous_among_the_equal_ones_only():
    for key in range(50):
        worker, reason = chosen("cost", scores(1.0, 1.0, 0.5 + 0.5 * 1.1), query(key))
        assert reason is DecisionReason.TIE
        assert worker == rendezvous(key, [A, B])


def test_costs_that_differ_by_a_rounding_error_are_equal():
    assert chosen("cost", scores(0.1 + 0.2, 0.3))[1] is DecisionReason.TIE


def test_the_same_request_goes_to_the_same_place_and_different_ones_spread():
    picks = [chosen("cost", scores(1.0, 1.0, 1.0), query(key))[0] for key in range(300)]
    assert picks == [chosen("cost", scores(1.0, 1.0, 1.0)[::-1], query(key))[0] for key in range(300)]
    assert min(picks.count(worker) for worker in WORKERS) > 60


@settings(deadline=None, max_examples=100)
@given(key=st.integers(0, 2**64 - 1), lost=st.sampled_from(WORKERS))
def test_losing_a_worker_moves_only_its_own_requests(key, lost):
    before = rendezvous(key, WORKERS)
    after = rendezvous(key, [worker for worker in WORKERS if worker != lost])
    assert after == before or before == lost


@settings(deadline=None, max_examples=100)
@given(key=st.integers(0, 2**64 - 1))
def test_a_tie_goes_where_the_pinned_router_would_send_the_request_without_a_decision(key):
    # The hash of `router.pinned.rank_by_rendezvous`, which is not imported: it needs Ray.
    weights = {w.replica: xxhash.xxh3_64_intdigest(w.replica.encode(), key) for w in WORKERS}
    assert rendezvous(key, WORKERS).replica == max(weights, key=weights.__getitem__)


def test_ranks_of_one_replica_share_its_ties():
    ranks = [WorkerId("a", rank) for rank in range(4)]
    assert {rendezvous(key, ranks) for key in range(100)} == set(ranks)


def test_kv_blocks_weighs_blocks_to_compute_against_active_blocks():
    candidates = scores(0.0, 0.0, 0.0, overlaps=(8, 0, 0))
    # 10 blocks asked: a has (10 - 8) + 9 = 11, b 10 + 0 = 10, c (10 + 2 waiting) + 0 = 12.
    state = State({C: WorkerLoad(prefill_tokens=32)}, {A: 9})
    assert chosen("kv_blocks", candidates, state=state) == (B, DecisionReason.POLICY)
    state.decode_blocks[A] = 7
    assert chosen("kv_blocks", candidates, state=state) == (A, DecisionReason.POLICY)


def test_kv_blocks_settles_equal_candidates_by_rendezvous():
    for key in range(20):
        assert chosen("kv_blocks", scores(0, 0, 0), query(key))[0] == rendezvous(key, WORKERS)


def test_round_robin_takes_each_worker_in_turn_though_one_may_be_missing():
    policy = make_policy("round_robin", Random(1))
    turns = [policy.choose(scores(0, 0, 0), query(), State())[0] for _ in range(4)]
    assert turns == [A, B, C, A]
    assert policy.choose(scores(0, 0, 0)[::2], query(), State())[0] == C


def test_power_of_two_takes_the_less_busy_of_two_drawn():
    state = State({A: WorkerLoad(active_requests=3), B: WorkerLoad(active_requests=2), C: WorkerLoad()})
    picks = {
        chosen("power_of_two", scores(0, 0, 0), state=state, random=Random(seed))[0] for seed in range(50)
    }
    assert picks == {B, C}  # the busiest one loses every draw


def test_power_of_two_takes_the_only_worker():
    assert chosen("power_of_two", scores(0)) == (A, DecisionReason.POLICY)


def test_least_loaded_counts_requests_first_and_waiting_tokens_next():
    state = State(
        {
            A: WorkerLoad(active_requests=2),
            B: WorkerLoad(prefill_tokens=9, active_requests=1),
            C: WorkerLoad(encode_tokens=8, active_requests=1),
        }
    )
    assert chosen("least_loaded", scores(0, 9, 9), state=state) == (C, DecisionReason.POLICY)


@pytest.mark.parametrize("key", range(10))
def test_media_sticky_follows_the_picture_whatever_the_cost(key):
    state = State({worker: WorkerLoad(active_requests=i) for i, worker in enumerate(WORKERS)})
    picked = chosen("media_sticky", scores(9, 1, 5), query(key), state)
    assert picked == (rendezvous(key, WORKERS), DecisionReason.POLICY)

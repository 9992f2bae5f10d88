"""How a worker is chosen among scored candidates."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router.columns import CANDIDATE, WORKER
from router.config import RouterConfig
from router.policies import Contest, make_policy, rendezvous
from sightline_types import DecisionReason, WorkerId

A, B, C = (WorkerId(name) for name in "abc")
WORKERS = (A, B, C)


def rows(*costs: float, overlaps: tuple[int, ...] = (0, 0, 0)) -> np.ndarray:
    made = np.zeros(len(costs), CANDIDATE)
    made["cost_ms"], made["overlap"], made["block_size"] = costs, overlaps[: len(costs)], 16
    return made


def contest(made, key=0, workers=WORKERS, loads=None, added=(0, 0, 0)) -> Contest:
    at = np.zeros(len(made), WORKER)
    for row, load in enumerate(loads or ()):
        for column, value in load.items():
            at[column][row] = value
    workers = list(workers)[: len(made)]
    return Contest(
        made,
        workers,
        encoded(workers),
        lambda: at,
        160,
        key,
        lambda: np.array(added[: len(made)], dtype=np.int32),
    )


def encoded(workers) -> list[bytes]:
    return [worker.replica.encode() for worker in workers]


def chosen(name, asked, random=None, **config):
    policy = make_policy(RouterConfig(policy=name, **config), random or Random(1))
    row, reason = policy.choose(asked)
    return asked.workers[row], reason


def home(key, workers=WORKERS):
    return workers[rendezvous(key, workers, encoded(workers))]


def test_the_lowest_cost_wins():
    assert chosen("cost", contest(rows(3.0, 1.0, 2.0))) == (B, DecisionReason.COST)


def test_equal_costs_are_settled_by_rendezvous_among_the_equal_ones_only():
    for key in range(50):
        worker, reason = chosen("cost", contest(rows(1.0, 1.0, 0.5 + 0.5 * 1.1), key))
        assert reason is DecisionReason.TIE
        assert worker == home(key, [A, B])


def test_costs_that_differ_by_a_rounding_error_are_equal():
    assert chosen("cost", contest(rows(0.1 + 0.2, 0.3)))[1] is DecisionReason.TIE


def test_the_same_request_goes_to_the_same_place_and_different_ones_spread():
    equal = rows(1.0, 1.0, 1.0)
    picks = [chosen("cost", contest(equal, key))[0] for key in range(300)]
    assert picks == [chosen("cost", contest(equal, key, WORKERS[::-1]))[0] for key in range(300)]
    assert min(picks.count(worker) for worker in WORKERS) > 60


def test_a_temperature_draws_by_cost_and_the_same_source_draws_the_same():
    asked = contest(rows(0.0, 10.0, 1000.0))
    policy = make_policy(RouterConfig(temperature_ms=10.0), Random(3))
    picks = [policy.choose(asked) for _ in range(2000)]
    counts = [sum(row == place for row, _ in picks) for place in range(3)]
    assert {reason for _, reason in picks} == {DecisionReason.SAMPLED}
    assert counts[0] / counts[1] == pytest.approx(np.e, rel=0.2)
    assert counts[2] == 0
    again = make_policy(RouterConfig(temperature_ms=10.0), Random(3))
    assert [again.choose(asked) for _ in range(2000)] == picks


@settings(deadline=None, max_examples=100)
@given(key=st.integers(0, 2**64 - 1), lost=st.sampled_from(WORKERS))
def test_losing_a_worker_moves_only_its_own_requests(key, lost):
    before = home(key)
    after = home(key, [worker for worker in WORKERS if worker != lost])
    assert after == before or before == lost


@settings(deadline=None, max_examples=100)
@given(key=st.integers(0, 2**64 - 1))
def test_a_tie_goes_where_the_pinned_router_would_send_the_request_without_a_decision(key):
    # The hash of `router.pinned.rank_by_rendezvous`, which is not imported: it needs Ray.
    weights = {w.replica: xxhash.xxh3_64_intdigest(w.replica.encode(), key) for w in WORKERS}
    assert home(key).replica == max(weights, key=weights.__getitem__)


def test_ranks_of_one_replica_share_its_ties():
    ranks = [WorkerId("a", rank) for rank in range(4)]
    assert {home(key, ranks) for key in range(100)} == set(ranks)


def test_kv_blocks_weighs_blocks_to_compute_against_active_blocks():
    candidates = rows(0.0, 0.0, 0.0, overlaps=(8, 0, 0))
    # 10 blocks asked: a has (10 - 8) + 9 = 11, b 10 + 0 = 10, c (10 + 2 waiting) + 0 = 12.
    loads = [{"decode_blocks": 6}, {}, {"prefill_tokens": 32}]
    busy = contest(candidates, loads=loads, added=(3, 0, 0))
    assert chosen("kv_blocks", busy) == (B, DecisionReason.POLICY)
    freer = contest(candidates, loads=loads, added=(1, 0, 0))
    assert chosen("kv_blocks", freer) == (A, DecisionReason.POLICY)


def test_kv_blocks_settles_equal_candidates_by_rendezvous():
    for key in range(20):
        assert chosen("kv_blocks", contest(rows(0, 0, 0), key))[0] == home(key)


def test_round_robin_takes_each_worker_in_turn_though_one_may_be_missing():
    policy = make_policy(RouterConfig(policy="round_robin"), Random(1))
    turns = [WORKERS[policy.choose(contest(rows(0, 0, 0)))[0]] for _ in range(4)]
    assert turns == [A, B, C, A]
    without_b = contest(rows(0, 0), workers=(A, C))
    assert without_b.workers[policy.choose(without_b)[0]] == C


def test_power_of_two_takes_the_less_busy_of_two_drawn():
    asked = contest(rows(0, 0, 0), loads=[{"requests": 3}, {"requests": 2}, {}])
    picks = {chosen("power_of_two", asked, Random(seed))[0] for seed in range(50)}
    assert picks == {B, C}  # the busiest one loses every draw


def test_power_of_two_takes_the_only_worker():
    assert chosen("power_of_two", contest(rows(0))) == (A, DecisionReason.POLICY)


def test_least_loaded_counts_requests_first_and_waiting_tokens_next():
    loads = [{"requests": 2}, {"requests": 1, "prefill_tokens": 9}, {"requests": 1, "encode_tokens": 8}]
    assert chosen("least_loaded", contest(rows(0, 9, 9), loads=loads)) == (C, DecisionReason.POLICY)


@pytest.mark.parametrize("key", range(10))
def test_media_sticky_follows_the_picture_whatever_the_cost(key):
    asked = contest(rows(9, 1, 5), key, loads=[{"requests": place} for place in range(3)])
    assert chosen("media_sticky", asked) == (home(key), DecisionReason.POLICY)

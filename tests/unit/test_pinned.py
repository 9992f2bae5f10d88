"""The order in which the pinned router tries replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ray.serve.request_router import RequestRouter

from router.pinned import Pin, PinnedRouter, rank_by_rendezvous
from sightline_types import WorkerId


def test_equal_keys_go_to_the_same_replica() -> None:
    queues = {"a": 0, "b": 0, "c": 0}
    assert rank_by_rendezvous(7, queues) == rank_by_rendezvous(7, dict(reversed(queues.items())))


def test_different_keys_spread() -> None:
    firsts = {rank_by_rendezvous(key, {"a": 0, "b": 0, "c": 0})[0] for key in range(64)}
    assert firsts == {"a", "b", "c"}


def test_a_replica_above_the_load_bound_comes_last() -> None:
    for key in range(32):
        assert rank_by_rendezvous(key, {"a": 100, "b": 1, "c": 1})[-1] == "a"


def test_a_short_queue_is_not_passed_over() -> None:
    for key in range(32):
        idle = rank_by_rendezvous(key, {"a": 0, "b": 0, "c": 0})
        assert rank_by_rendezvous(key, {"a": 3, "b": 0, "c": 0}) == idle


def test_a_lost_replica_moves_only_its_own_keys() -> None:
    before = {key: rank_by_rendezvous(key, {"a": 0, "b": 0, "c": 0})[0] for key in range(200)}
    after = {key: rank_by_rendezvous(key, {"a": 0, "b": 0})[0] for key in range(200)}
    assert all(after[key] == home for key, home in before.items() if home != "c")


@given(st.integers(), st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 1000), max_size=8))
def test_every_replica_is_ranked_once(key: int, queues: dict[str, int]) -> None:
    assert sorted(rank_by_rendezvous(key, queues)) == sorted(queues)


def test_of_a_replicas_ranks_a_pin_names_the_replica_once_and_the_best_rank() -> None:
    ranked = [WorkerId("a", 1), WorkerId("b", 0), WorkerId("a", 0), WorkerId("b", 1)]
    pin = Pin.towards(7, ranked, exclude=[WorkerId("c", 0), WorkerId("c", 1)])
    assert (pin.ranked, pin.exclude) == (("a", "b"), ("c",))
    assert (pin.rank_at("a"), pin.rank_at("b"), pin.rank_at("c")) == (1, 0, None)


def test_a_pin_of_single_rank_workers_carries_no_ranks() -> None:
    pin = Pin.towards(7, [WorkerId("a"), WorkerId("b")])
    assert pin == Pin(7, ("a", "b"))
    assert pin.rank_at("b") == 0


def test_a_busy_replica_has_longer_to_answer_than_serve_would_give_it() -> None:
    assert PinnedRouter.queue_len_response_deadline_s >= 10 * RequestRouter.queue_len_response_deadline_s

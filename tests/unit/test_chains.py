"""Chains under way by slot: plain examples, and any history against plain sets of prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chains import Chains


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def test_a_block_is_under_way_until_its_last_request_ends():
    chains = Chains()
    assert chains.acquire(0, keys(1, 2)) == 2
    assert chains.acquire(0, keys(1, 3)) == 1
    assert chains.count(0) == 3
    assert chains.release(0, keys(1, 2)) == 1
    assert chains.release(0, keys(1, 3)) == 2
    assert chains.count(0) == 0


def test_slots_share_nothing():
    chains = Chains()
    chains.acquire(0, keys(1, 2))
    chains.acquire(3, keys(1, 9))
    assert [chains.count(slot) for slot in range(5)] == [2, 0, 0, 2, 0]
    assert chains.would_add(keys(1, 2, 4), 4).tolist() == [1, 3, 3, 2]


def test_how_far_a_request_is_under_way_is_told_for_every_slot_that_has_a_part_of_it():
    chains = Chains()
    chains.acquire(0, keys(1, 2, 3, 4))
    chains.acquire(2, keys(1, 2, 9))
    chains.acquire(5, keys(8))
    assert chains.reach(keys(1, 2, 3, 7)) == {0: 3, 2: 2}
    assert chains.reach(keys()) == {}


def test_releasing_a_chain_that_was_never_acquired_is_a_mistake():
    chains = Chains()
    chains.acquire(0, keys(1))
    with pytest.raises(KeyError):
        chains.release(0, keys(2))


def test_a_run_that_was_cut_for_a_request_is_whole_again_after_it():
    chains = Chains()
    chains.acquire(0, keys(1, 2, 3, 4))
    for end in (1, 2, 3):
        chains.acquire(1, keys(1, 2, 3, 4)[:end])
    for end in (2, 1, 3):
        chains.release(1, keys(1, 2, 3, 4)[:end])
    assert len(chains._roots[1].keys) == 4


#: Few ways to go at each place, so that chains meet, part, and end inside of each other.
_CHAINS = st.lists(st.integers(1, 2), max_size=6)
_STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 2), _CHAINS), max_size=25)


def prefixes(chain: list[int]) -> set[tuple[int, ...]]:
    return {tuple(chain[: end + 1]) for end in range(len(chain))}


@settings(deadline=None, max_examples=150)
@given(steps=_STEPS, asked=_CHAINS)
def test_any_history_counts_as_sets_of_prefixes_do(steps, asked):
    chains, under_way = Chains(), []
    for comes, slot, chain in steps:
        if not comes and (slot, chain) not in under_way:
            continue
        before = set().union(*(prefixes(c) for s, c in under_way if s == slot))
        (under_way.append if comes else under_way.remove)((slot, chain))
        after = set().union(*(prefixes(c) for s, c in under_way if s == slot))
        changed = (chains.acquire if comes else chains.release)(slot, keys(*chain))
        assert changed == abs(len(after) - len(before))
        chains.check_integrity()
    for slot in range(3):
        own = set().union(*(prefixes(c) for s, c in under_way if s == slot))
        assert chains.count(slot) == len(own)
        assert chains.reach(keys(*asked)).get(slot, 0) == len(prefixes(asked) & own)
        assert chains.would_add(keys(*asked), 3)[slot] == len(prefixes(asked) - own)

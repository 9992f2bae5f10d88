"""Active blocks by slot: plain examples, and any history against counters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.active import ActiveBlocks, PlainActiveBlocks
from router.compiled_active import CompiledActiveBlocks
from router.structures import warm_up


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


@pytest.fixture(params=[PlainActiveBlocks, CompiledActiveBlocks])
def active(request: pytest.FixtureRequest) -> ActiveBlocks:
    return request.param()


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def test_a_block_is_active_until_its_last_request_ends(active):
    assert active.acquire(0, keys(1, 2)) == 2
    assert active.acquire(0, keys(2, 3)) == 1
    assert active.count(0) == 3
    assert active.release(0, keys(1, 2)) == 1
    assert active.release(0, keys(2, 3)) == 2
    assert active.count(0) == 0


def test_slots_share_nothing(active):
    active.acquire(0, keys(1, 2))
    active.acquire(3, keys(2, 9))
    assert active.counts(5).tolist() == [2, 0, 0, 2, 0]
    assert active.would_add(keys(1, 2, 4), 4).tolist() == [1, 3, 3, 2]


def test_releasing_what_is_not_active_changes_nothing(active):
    active.acquire(0, keys(1))
    assert active.release(0, keys(2)) == active.release(1, keys(1)) == 0
    assert active.counts(2).tolist() == [1, 0]


_KEYS = st.lists(st.integers(1, 9), max_size=6)
_STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 2), _KEYS), max_size=25)


@pytest.mark.parametrize("make", [PlainActiveBlocks, lambda: CompiledActiveBlocks(num_segments=2)])
@settings(deadline=None, max_examples=100)
@given(steps=_STEPS)
def test_any_history_counts_as_counters_do(make, steps):
    active, naive = make(), Counter()
    for acquires, slot, touched in steps:
        before = sum(at == slot for at, _ in naive)
        (naive.update if acquires else naive.subtract)((slot, key) for key in touched)
        naive = +naive
        change = sum(at == slot for at, _ in naive) - before
        made = (active.acquire if acquires else active.release)(slot, keys(*touched))
        assert made == abs(change)
        active.check_integrity()
    for slot in range(3):
        own = {key for at, key in naive if at == slot}
        assert active.count(slot) == len(own)
        assert active.would_add(keys(*range(1, 10)), 3)[slot] == 9 - len(own)

"""When a prefix that many ask for is due on one more worker."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chains import Chains
from router.copies import NO_COPY, DueCopy, SharedRun, due_copy


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def due(*runs: SharedRun, num_open: int = 40, num_workers: int = 8) -> DueCopy:
    return due_copy(runs, num_open=num_open, num_workers=num_workers, sharers_per_copy=8.0)


def test_a_prefix_of_everybody_is_due_on_one_worker_for_each_eight_requests():
    assert due(SharedRun(250, 40, 4)) == DueCopy(250, 5 / 40)
    assert due(SharedRun(250, 40, 5)) == NO_COPY


def test_a_prefix_is_due_on_no_more_workers_than_its_share_of_the_requests():
    assert due(SharedRun(250, 100, 1), num_open=400).blocks == 250
    assert due(SharedRun(250, 100, 2), num_open=400) == NO_COPY


def test_a_burst_of_a_few_twins_is_due_nowhere_else():
    assert due(SharedRun(250, 7, 1), num_open=7) == NO_COPY


def test_the_longest_beginning_that_is_due_counts():
    runs = SharedRun(10, 40, 1), SharedRun(200, 38, 1), SharedRun(300, 3, 1)
    assert due(*runs) == DueCopy(200, 2 / 38)


def test_an_endless_number_of_sharers_per_copy_means_none():
    assert (
        due_copy([SharedRun(9, 99, 1)], num_open=99, num_workers=8, sharers_per_copy=float("inf")) == NO_COPY
    )


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 3), min_size=1, max_size=5)), max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)
def test_what_is_shared_is_what_open_chains_begin_with(chains, asked):
    under_way = Chains()
    for slot, chain in chains:
        under_way.acquire(slot, keys(*chain))
    shared = under_way.shared(keys(*asked))
    ends = [shared_run.end for shared_run in shared]
    assert ends == sorted(set(ends))
    for end, sharers, num_workers in shared:
        same = [slot for slot, chain in chains if chain[:end] == asked[:end]]
        assert (sharers, num_workers) == (len(same), len(set(same)))

"""The load book: what is under way on each worker."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.columns import WorkerTable
from router.load import BookedLoad, LoadBook, WorkerLoad
from sightline_types import DecisionId

A, B = 0, 1  # slots
ONE, TWO = DecisionId("one"), DecisionId("two")


def keys(*values):
    return np.array(values, dtype=np.uint64)


LOAD = BookedLoad(prefill_tokens=100, encode_tokens=30, keys=keys(1, 2, 3))


def new_book() -> LoadBook:
    table = WorkerTable()
    table.ensure(2)
    return LoadBook(table)


def test_a_booking_counts_until_it_is_released():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    assert book.of(A) == WorkerLoad(100, 30, 1, 3, 1)
    assert book.release(ONE)
    assert book.of(A) == WorkerLoad()


def test_the_first_token_ends_prefill_and_encoding_but_not_the_blocks():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.first_token(ONE)
    assert book.of(A) == WorkerLoad(0, 0, 1, 3)
    book.first_token(ONE)
    book.release(ONE)
    assert book.of(A) == WorkerLoad()


def test_a_shared_block_counts_once_until_its_last_request_ends():
    book = new_book()
    book.book(ONE, A, BookedLoad(1, 0, keys(1, 2)), 10.0)
    book.book(TWO, A, BookedLoad(1, 0, keys(1, 3)), 10.0)
    assert book.of(A).decode_blocks == 3
    book.release(ONE)
    assert book.of(A).decode_blocks == 2


def test_the_blocks_that_a_request_would_add_are_counted_without_booking():
    book = new_book()
    book.book(ONE, A, BookedLoad(1, 0, keys(1, 2)), 10.0)
    assert book.would_add(keys(1, 3)).tolist()[:2] == [1, 2]
    assert book.of(A).decode_blocks == 2


def test_releasing_twice_changes_nothing():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.book(TWO, A, LOAD, 10.0)
    assert [book.release(ONE), book.release(ONE)] == [True, False]
    assert book.of(A) == WorkerLoad(100, 30, 1, 3, 1)


def test_booking_again_replaces_the_earlier_booking():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.book(ONE, B, BookedLoad(5, 0), 10.0)
    assert (book.of(A), book.of(B)) == (WorkerLoad(), WorkerLoad(5, 0, 1, 0, 1))


def test_a_moved_booking_leaves_nothing_behind():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.move(ONE, B, BookedLoad(60, 0, keys(7)))
    assert (book.of(A), book.of(B)) == (WorkerLoad(), WorkerLoad(60, 0, 1, 1, 1))


def test_a_booking_moved_after_its_first_token_brings_no_prefill_back():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.first_token(ONE)
    book.move(ONE, B, BookedLoad(60, 20, keys(7)))
    assert book.of(B) == WorkerLoad(0, 0, 1, 1)


def test_a_lease_that_runs_out_is_released_and_named():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.book(TWO, A, LOAD, 10.0)
    book.renew(TWO, 20.0)
    assert book.sweep(9.9) == ()
    assert book.sweep(10.0) == (ONE,)
    assert book.sweep(20.0) == (TWO,)
    assert book.of(A) == WorkerLoad()


def test_a_dropped_worker_takes_its_bookings_with_it():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.book(TWO, B, LOAD, 10.0)
    assert book.drop_slot(A) == (ONE,)
    assert (ONE in book, TWO in book, len(book)) == (False, True, 1)


def test_news_of_an_unknown_decision_changes_nothing():
    book = new_book()
    book.first_token(ONE)
    book.renew(ONE, 5.0)
    book.move(ONE, B, LOAD)
    assert not book.release(ONE)
    assert (len(book), book.slot_of(ONE), book.of(B)) == (0, None, WorkerLoad())


def test_an_ingress_renews_a_request_only_until_a_replica_has_it():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    book.renew(ONE, 20.0, started=False)
    assert book.sweep(15.0) == ()
    book.renew(ONE, 30.0)
    book.renew(ONE, 90.0, started=False)
    assert book.sweep(30.0) == (ONE,)


def test_a_request_is_alone_until_another_waits_beside_it():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0)
    assert book.was_alone(ONE)
    book.book(TWO, A, LOAD, 10.0)
    assert (book.was_alone(ONE), book.was_alone(TWO)) == (False, False)
    book.first_token(ONE)
    book.first_token(TWO)
    three = DecisionId("three")
    book.book(three, A, LOAD, 10.0)
    assert book.was_alone(three)


def test_only_bookings_that_a_replica_took_can_be_reconciled():
    book = new_book()
    book.book(ONE, A, LOAD, 10.0, now=1.0)
    book.book(TWO, A, LOAD, 10.0, now=1.0)
    book.renew(ONE, 10.0)
    assert book.started_before(A, 2.0) == (ONE,)
    assert book.started_before(A, 1.0) == ()


_ids = st.sampled_from([DecisionId(f"d{i}") for i in range(5)])
_on = st.sampled_from([A, B])
_loads = st.builds(
    BookedLoad,
    st.integers(0, 50),
    st.integers(0, 50),
    st.lists(st.integers(1, 6), max_size=4).map(lambda drawn: keys(*drawn)),
)
_steps = st.one_of(
    st.tuples(st.just("book"), _ids, _on, _loads, st.integers(0, 9)),
    st.tuples(st.just("first_token"), _ids),
    st.tuples(st.just("release"), _ids),
    st.tuples(st.just("move"), _ids, _on, _loads),
    st.tuples(st.just("renew"), _ids, st.integers(0, 9)),
    st.tuples(st.just("sweep"), st.integers(0, 9)),
    st.tuples(st.just("drop_slot"), _on),
)


@settings(deadline=None, max_examples=150)
@given(steps=st.lists(_steps, max_size=30))
def test_any_history_keeps_the_sums_right_and_ends_at_zero(steps):
    book = new_book()
    for name, *arguments in steps:
        getattr(book, name)(*arguments)
        book.check_integrity()
        assert min(*_numbers(book.of(A)), *_numbers(book.of(B))) >= 0
    for decision_id in [DecisionId(f"d{i}") for i in range(5)]:
        book.release(decision_id)
    assert (len(book), book.of(A), book.of(B)) == (0, WorkerLoad(), WorkerLoad())


def _numbers(load: WorkerLoad) -> tuple[int, ...]:
    return load.prefill_tokens, load.encode_tokens, load.active_requests, load.decode_blocks

"""Which worker has encoded which media lately."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.encoders import EncoderCaches
from sightline_types import DecisionId, MediaId, MediaSpan

ONE, TWO = DecisionId("one"), DecisionId("two")


def span(number: int, tokens: int = 10) -> MediaSpan:
    return MediaSpan(0, tokens, MediaId(number))


def caches(capacity: int = 25) -> EncoderCaches:
    made = EncoderCaches()
    for slot in (0, 1):
        made.open(slot, capacity)
    return made


def where(made: EncoderCaches, *spans: MediaSpan) -> list[list[bool]]:
    return made.encoded(spans, np.arange(2)).tolist()


def serve(made: EncoderCaches, slot: int, *spans: MediaSpan) -> None:
    made.expect(ONE, slot, spans)
    made.confirm(ONE)


def test_a_picture_is_expected_from_the_decision_and_known_from_the_first_token():
    made = caches()
    made.expect(ONE, 1, (span(7),))
    assert where(made, span(7)) == [[False, True]]
    made.confirm(ONE)
    assert (where(made, span(7)), made.num_tokens(1)) == ([[False, True]], 10)


def test_what_was_expected_of_an_aborted_request_is_not_encoded():
    made = caches()
    made.expect(ONE, 1, (span(7),))
    made.expect(TWO, 1, (span(7),))
    made.drop(ONE)
    assert where(made, span(7)) == [[False, True]]
    made.drop(TWO)
    assert where(made, span(7)) == [[False, False]]


def test_the_least_recently_used_picture_goes_first():
    made = caches(capacity=25)
    for number in (1, 2, 1, 3):
        serve(made, 0, span(number))
    assert [row[0] for row in where(made, span(1), span(2), span(3))] == [True, False, True]


def test_a_picture_larger_than_the_cache_is_never_in_it():
    made = caches(capacity=25)
    serve(made, 0, span(1), span(2, tokens=26))
    assert [row[0] for row in where(made, span(1), span(2))] == [True, False]


def test_a_worker_that_begins_anew_has_encoded_nothing():
    made = caches()
    serve(made, 0, span(1))
    made.expect(TWO, 0, (span(2),))
    made.open(0, 25)
    assert where(made, span(1), span(2)) == [[False, False], [False, False]]
    made.check_integrity()


_slots = st.integers(0, 2)
_ids = st.sampled_from([DecisionId(f"d{n}") for n in range(4)])
_spans = st.lists(st.builds(span, st.integers(1, 6), st.integers(1, 12)), max_size=3).map(tuple)
_steps = st.one_of(
    st.tuples(st.just("open"), _slots, st.sampled_from([0, 10, 30])),
    st.tuples(st.just("close"), _slots),
    st.tuples(st.just("expect"), _ids, _slots, _spans),
    st.tuples(st.just("confirm"), _ids),
    st.tuples(st.just("drop"), _ids),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(_steps, max_size=40))
def test_any_history_keeps_the_tables_consistent(steps):
    made = EncoderCaches()
    for name, *arguments in steps:
        getattr(made, name)(*arguments)
        made.check_integrity()
    for slot in range(3):
        made.close(slot)
    made.check_integrity()
    assert not made.encoded((span(1), span(2)), np.arange(3)).any()

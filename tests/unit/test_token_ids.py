"""Token ids that are passed on whole."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline_types import TokenIds

lists = st.lists(st.integers(0, 2**31 - 1), max_size=50)


@settings(deadline=None, max_examples=60)
@given(lists, st.slices(50))
def test_they_are_the_sequence_that_they_were_made_of(ids: list[int], part: slice) -> None:
    packed = TokenIds(np.array(ids, dtype=np.int64))
    assert packed == ids and packed == tuple(ids) and ids == packed
    assert (len(packed), list(packed), packed[part]) == (len(ids), ids, ids[part])
    assert [packed[index] for index in range(len(ids))] == ids
    assert np.asarray(packed, dtype=np.int64).tolist() == ids
    assert packed != [*ids, 1] and packed != "text"
    if ids:
        assert packed.index(ids[-1]) == ids.index(ids[-1])


@settings(deadline=None, max_examples=30)
@given(lists)
def test_they_travel_in_four_bytes_each(ids: list[int]) -> None:
    packed = TokenIds(np.array(ids, dtype=np.int64))
    message = pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)
    assert pickle.loads(message) == packed
    assert hash(pickle.loads(message)) == hash(packed)
    assert len(message) <= 4 * len(ids) + 100


def test_they_cannot_be_changed_by_whoever_made_them() -> None:
    made_of = np.arange(4, dtype=np.int32)
    packed = TokenIds(made_of)
    np.asarray(packed, dtype=np.int64)[0] = 9
    assert packed == [0, 1, 2, 3]

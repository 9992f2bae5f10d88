"""What may explain that a prediction came out otherwise."""

from __future__ import annotations

import numpy as np

from router.history import RecentChanges
from sightline_types import Tier, TierDelta

KEYS = np.arange(1, 7, dtype=np.uint64)


def packed(*keys: int) -> bytes:
    return np.array(keys, dtype="<u8").tobytes()


def changes(*deltas: TierDelta, floor: int = 0) -> RecentChanges:
    recent = RecentChanges(floor)
    for seq, delta in enumerate(deltas, floor + 1):
        recent.note(seq, (delta,))
    return recent


def test_the_removal_of_a_predicted_block_explains_a_shorter_hit():
    recent = changes(TierDelta(Tier(), removed=packed(3)))
    assert recent.may_explain(0, KEYS, predicted=4, reported=2)
    assert not recent.may_explain(0, KEYS, predicted=2, reported=1), "block 3 was not predicted"
    assert not recent.may_explain(1, KEYS, predicted=4, reported=2), "it was known at the decision"


def test_the_arrival_of_a_block_beyond_explains_a_longer_hit():
    recent = changes(TierDelta(Tier(), stored=packed(5)))
    assert recent.may_explain(0, KEYS, predicted=4, reported=5)
    assert not recent.may_explain(0, KEYS, predicted=4, reported=4 + 0), "nothing to explain"
    assert not recent.may_explain(0, KEYS, predicted=2, reported=3)


def test_other_media_explain_nothing_but_other_cache_groups_do():
    lower = changes(TierDelta(Tier(0, "CPU"), removed=packed(3)))
    assert not lower.may_explain(0, KEYS, predicted=4, reported=2)
    group = changes(TierDelta(Tier(1, "GPU"), removed=packed(3)))
    assert group.may_explain(0, KEYS, predicted=4, reported=2)


def test_before_what_is_remembered_anything_may_have_happened():
    recent = changes(floor=7)
    assert recent.may_explain(6, KEYS, predicted=4, reported=2)
    assert not recent.may_explain(7, KEYS, predicted=4, reported=2)


def test_the_memory_is_bounded_and_knows_its_own_beginning():
    many = packed(*range(100, 20_100))
    recent = changes(*[TierDelta(Tier(), stored=many)] * 3)
    assert recent.floor_seq == 2
    assert recent.may_explain(1, KEYS, predicted=4, reported=2)

"""The block index: plain examples, then any history against the naive oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from naive_index import NaiveIndex

from router.compiled_index import CompiledIndex
from router.index import BlockIndex, Leading
from router.lanes import TooManyWorkers
from router.plain_index import PlainIndex
from router.structures import warm_up
from sightline_types import DecisionId, Tier, TierDelta, WorkerId

A, B, C = (WorkerId(name) for name in "abc")
GPU, CPU, WINDOW = Tier(), Tier(0, "CPU"), Tier(1)
#: Of 1,024 segments with the fewest cells and words they keep.
FEWEST_BYTES = 1024 * (8 * 16 + 16 * 8)
ONE, TWO = DecisionId("one"), DecisionId("two")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


@pytest.fixture(params=[PlainIndex, CompiledIndex])
def index(request: pytest.FixtureRequest) -> BlockIndex:
    return request.param()


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def delta(stored=(), removed=(), tier: Tier = GPU) -> TierDelta:
    return TierDelta(tier, keys(*stored).astype("<u8").tobytes(), keys(*removed).astype("<u8").tobytes())


def test_leading_blocks_are_counted_for_all_workers_in_one_answer(index):
    index.apply(A, delta([1, 2, 3]))
    index.apply(B, delta([1, 3]))
    index.apply(C, delta([2, 3]))
    assert index.leading(keys(1, 2, 3, 4)) == {A: Leading(3, 3), B: Leading(1, 1), C: Leading(0, 0)}


def test_a_request_without_full_blocks_has_nothing_anywhere(index):
    index.apply(A, delta([1]))
    assert index.leading(keys()) == {A: Leading(0, 0)}


def test_only_the_first_group_on_the_gpu_earns_credit(index):
    index.apply(A, delta([1, 2], tier=CPU))
    index.apply(A, delta([1, 2], tier=WINDOW))
    assert index.leading(keys(1, 2))[A] == Leading(0, 0)
    assert (index.num_blocks(A), index.num_blocks(A, CPU), index.num_blocks(A, WINDOW)) == (0, 2, 2)


def test_a_hole_ends_the_prefix_until_its_block_returns(index):
    index.apply(A, delta([1, 2, 3]))
    index.apply(A, delta(removed=[2]))
    assert index.leading(keys(1, 2, 3))[A].confirmed == 1
    index.apply(A, delta([2]))
    assert index.leading(keys(1, 2, 3))[A].confirmed == 3


def test_a_repeated_store_and_an_unknown_removal_are_counted_and_harmless(index):
    index.apply(A, delta([1]))
    index.apply(A, delta([1, 2]))
    index.apply(A, delta(removed=[2]))
    index.apply(A, delta(removed=[2, 9]))
    index.apply(A, delta(removed=[9], tier=CPU))
    assert (index.stats().repeated_stores, index.stats().unknown_removals) == (1, 3)
    assert index.num_blocks(A) == 1


def test_a_table_replaces_what_was_held_before(index):
    index.apply(A, delta([1, 2]))
    index.apply(A, delta([5], tier=CPU))
    index.apply(B, delta([1]))
    index.replace(A, [delta([1, 3])])
    assert index.leading(keys(1, 3)) == {A: Leading(2, 2), B: Leading(1, 1)}
    assert index.num_blocks(A, CPU) == 0


def test_a_slot_is_used_again_and_inherits_nothing(index):
    index.apply(A, delta([1, 2]))
    index.expect(A, keys(3), 10.0, ONE)
    index.forget(A)
    index.apply(B, delta([1]))
    assert index.leading(keys(1, 2, 3)) == {B: Leading(1, 1)}
    assert index.stats().expected_blocks == 0


def test_memory_returns_after_removals_from_the_plain_index():
    index = PlainIndex()
    index.apply(A, delta([1, 2]))
    index.expect(A, keys(3), 10.0, ONE)
    index.apply(A, delta(removed=[1, 2]))
    index.drop_expected(ONE)
    assert (index._tiers, index._coming._by_owner, index._coming._owners) == ({}, {}, {})
    assert index.stats().expected_blocks == 0


def test_memory_returns_after_removals_from_the_compiled_index():
    index = CompiledIndex()
    empty = index.stats().memory_bytes
    many = range(1, 20_000)
    for worker in (A, B, C, WorkerId("d")):
        index.apply(worker, delta(many))
        index.apply(worker, delta(many, tier=CPU))
    index.expect(A, keys(30_000), 10.0, ONE)
    assert index.stats().memory_bytes > empty + 20_000 * 16
    for worker in (A, B, C, WorkerId("d")):
        index.apply(worker, delta(removed=many))
        index.apply(worker, delta(removed=many, tier=CPU))
    index.drop_expected(ONE)
    assert index.stats().memory_bytes <= empty + FEWEST_BYTES


def test_expected_blocks_extend_the_expected_prefix_only(index):
    index.apply(A, delta([1, 3]))
    index.expect(A, keys(1, 2, 3, 4), 10.0, ONE)
    assert index.leading(keys(1, 2, 3, 4, 5))[A] == Leading(1, 4)
    assert index.num_expected(A) == 4


def test_what_is_held_beyond_the_expected_blocks_counts_on(index):
    index.apply(A, delta([3, 4, 6]))
    index.apply(B, delta([4]))
    index.expect(A, keys(1, 2), 10.0, ONE)
    index.expect(B, keys(1, 2), 10.0, TWO)
    assert index.leading(keys(1, 2, 3, 4, 5)) == {A: Leading(0, 4), B: Leading(0, 2)}


def test_a_block_that_a_request_under_way_brought_stays_expected_until_that_ends(index):
    index.expect(A, keys(1, 2), 10.0, ONE)
    index.apply(A, delta([1]))
    assert index.leading(keys(1, 2))[A] == Leading(1, 2)
    index.apply(A, delta(removed=[1]))
    assert index.leading(keys(1, 2))[A] == Leading(0, 2)
    index.drop_expected(ONE)
    assert index.leading(keys(1, 2))[A] == Leading(0, 0)


def test_a_block_stays_expected_while_another_decision_waits_for_it(index):
    index.expect(A, keys(1), 10.0, ONE)
    index.expect(A, keys(1), 10.0, TWO)
    index.drop_expected(ONE)
    assert index.leading(keys(1))[A].expected == 1
    index.drop_expected(TWO)
    assert index.leading(keys(1))[A].expected == 0


def test_expecting_again_moves_the_decision_to_the_other_worker(index):
    index.expect(A, keys(1), 10.0, ONE)
    index.expect(B, keys(1), 10.0, ONE)
    assert index.leading(keys(1)) == {A: Leading(0, 0), B: Leading(0, 1)}


def test_expected_blocks_go_when_their_time_is_over(index):
    index.expect(A, keys(1), 10.0, ONE)
    index.expect(A, keys(2), 11.0, TWO)
    index.sweep(10.0)
    assert index.leading(keys(1))[A].expected == 0
    assert index.leading(keys(2))[A].expected == 1


def test_trimming_drops_the_oldest_expectations_first(index):
    index.expect(A, keys(1, 2), 10.0, ONE)
    index.expect(A, keys(3, 4), 10.0, TWO)
    index.trim_expected(A, 3)
    assert index.leading(keys(1))[A].expected == 0
    assert index.leading(keys(3, 4))[A].expected == 2


def test_lower_tiers_extend_a_run_of_their_own(index):
    index.apply(A, delta([1, 3]))
    index.apply(A, delta([2], tier=CPU))
    index.apply(A, delta([4], tier=Tier(0, "DISK")))
    match = index.match(keys(1, 2, 3, 4, 5))
    assert (match.held.tolist(), match.expected.tolist(), match.lower.tolist()) == ([1], [1], [4])


def test_each_group_is_matched_alone(index):
    index.apply(A, delta([1]))
    index.apply(A, delta([1, 2], tier=WINDOW))
    index.expect(A, keys(1, 2), 10.0, ONE)
    first, window = index.match(keys(1, 2)), index.match(keys(1, 2), group=1)
    assert (first.held.tolist(), first.expected.tolist(), first.lower.tolist()) == ([1], [2], [1])
    assert (window.held.tolist(), window.expected.tolist(), window.lower.tolist()) == ([2], [2], [2])


def test_presence_tells_each_block_whatever_lies_before_it(index):
    index.apply(A, delta([1, 3], tier=WINDOW))
    index.apply(B, delta([2], tier=WINDOW))
    present = index.presence(keys(1, 2, 3), group=1)
    assert present[index.slot_of(A)].tolist() == [True, False, True]
    assert present[index.slot_of(B)].tolist() == [False, True, False]


def test_a_slot_is_kept_through_a_new_table_and_free_after_forgetting(index):
    index.apply(A, delta([1]))
    slot = index.slot_of(A)
    index.replace(A, [delta([2])])
    assert (index.slot_of(A), index.worker_at(slot)) == (slot, A)
    assert slot < index.num_slots
    index.forget(A)
    assert (index.slot_of(A), index.worker_at(slot)) == (None, None)


def test_keys_may_lie_anywhere_in_memory(index):
    packed = b"x" + keys(1, 2, 3).tobytes()
    index.apply(A, TierDelta(GPU, memoryview(packed)[1:]))
    apart = np.frombuffer(packed, dtype=np.uint64, offset=1)
    assert index.leading(apart) == {A: Leading(3, 3)}
    assert index.leading(keys(1, 0, 2, 0, 3, 0)[::2]) == {A: Leading(3, 3)}
    index.expect(A, np.frombuffer(b"y" + keys(1, 2, 3, 4).tobytes(), dtype=np.uint64, offset=1), 1.0, ONE)
    assert index.leading(keys(1, 2, 3, 4)) == {A: Leading(3, 4)}


_workers = st.sampled_from([A, B, C])
_tiers = st.sampled_from([GPU, GPU, CPU, WINDOW])
_keys = st.sets(st.integers(1, 12), max_size=8)
_owners = st.sampled_from([DecisionId(f"d{i}") for i in range(4)])
#: Requests that go along with the one that every step asks for, and then their own way.
_begun = st.tuples(st.integers(0, 8), st.lists(st.integers(1, 12), max_size=4)).map(
    lambda way: [*range(1, 1 + way[0]), *way[1]]
)


class IndexAgainstOracle(RuleBasedStateMachine):
    """Of few workers and keys, so that every kind of meeting happens."""

    def make(self) -> BlockIndex:
        return PlainIndex()

    def __init__(self) -> None:
        super().__init__()
        self.index, self.naive, self.now = self.make(), NaiveIndex(), 0.0

    @rule(worker=_workers, tier=_tiers, stored=_keys, removed=_keys)
    def apply(self, worker, tier, stored, removed):
        removed = removed - stored
        self.index.apply(worker, delta(stored, removed, tier))
        self.naive.apply(worker, tier, stored, removed)

    @rule(worker=_workers, gpu=_keys, cpu=_keys)
    def replace(self, worker, gpu, cpu):
        self.index.replace(worker, [delta(gpu), delta(cpu, tier=CPU)])
        self.naive.replace(worker, {GPU: gpu, CPU: cpu})

    @rule(worker=_workers)
    def forget(self, worker):
        self.index.forget(worker)
        self.naive.forget(worker)

    @rule(worker=_workers, begun=_begun, ttl=st.integers(1, 3), owner=_owners)
    def expect(self, worker, begun, ttl, owner):
        self.index.expect(worker, keys(*begun), self.now + ttl, owner)
        self.naive.expect(worker, begun, self.now + ttl, owner)

    @rule(owner=_owners)
    def drop_expected(self, owner):
        self.index.drop_expected(owner)
        self.naive.drop_expected(owner)

    @rule(worker=_workers)
    def drop_expected_of(self, worker):
        self.index.drop_expected_of(worker)
        self.naive.drop_expected_of(worker)

    @rule()
    def sweep(self):
        self.now += 1
        self.index.sweep(self.now)
        self.naive.sweep(self.now)

    @rule(asked=st.permutations(range(1, 13)), count=st.integers(0, 12))
    def ask(self, asked, count):
        self.compare(asked[:count])

    def compare(self, asked):
        assert self.index.leading(keys(*asked)) == self.naive.leading(asked)
        match, present = self.index.match(keys(*asked)), self.index.presence(keys(*asked))
        for worker, lower in self.naive.lower(asked).items():
            slot = self.index.slot_of(worker)
            assert match.lower[slot] == lower
            held = self.naive.held[worker].get(GPU, ())
            assert present[slot].tolist() == [key in held for key in asked]

    @invariant()
    def agrees(self):
        self.index.check_integrity()
        assert self.index.workers() == set(self.naive.held)
        self.compare(list(range(1, 13)))
        for worker in (A, B, C):
            assert self.index.num_expected(worker) == self.naive.num_expected(worker)
            for tier in (GPU, CPU, WINDOW):
                assert self.index.num_blocks(worker, tier) == self.naive.num_blocks(worker, tier)
                held = self.naive.held.get(worker, {}).get(tier, set())
                assert self.index.held_keys(worker, tier).tolist() == sorted(held)


class CompiledIndexAgainstOracle(IndexAgainstOracle):
    def make(self) -> BlockIndex:
        return CompiledIndex(num_segments=2)


_FLEET = [WorkerId(f"w{number}") for number in range(150)]
_MANY = range(1, 400)


class FleetAgainstOracle(RuleBasedStateMachine):
    """Of many workers with common blocks: tables grow and shrink, and sets become rows and lists again."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.naive = CompiledIndex(num_segments=4), NaiveIndex()

    @rule(
        first=st.integers(0, 149),
        count=st.integers(1, 150),
        begin=st.integers(1, 399),
        size=st.integers(1, 99),
    )
    def store(self, first, count, begin, size):
        stored = set(range(begin, min(begin + size, 400)))
        for worker in _FLEET[first : first + count]:
            self.index.apply(worker, delta(stored))
            self.naive.apply(worker, GPU, stored, set())

    @rule(
        first=st.integers(0, 149),
        count=st.integers(1, 150),
        begin=st.integers(1, 399),
        size=st.integers(1, 400),
    )
    def remove(self, first, count, begin, size):
        removed = set(range(begin, min(begin + size, 400)))
        for worker in _FLEET[first : first + count]:
            self.index.apply(worker, delta((), removed))
            self.naive.apply(worker, GPU, set(), removed)

    @rule(first=st.integers(0, 149), count=st.integers(1, 150))
    def forget(self, first, count):
        for worker in _FLEET[first : first + count]:
            self.index.forget(worker)
            self.naive.forget(worker)

    @rule(first=st.integers(0, 149), count=st.integers(1, 20), begin=st.integers(1, 399))
    def replace(self, first, count, begin):
        held = set(range(begin, min(begin + 30, 400)))
        for worker in _FLEET[first : first + count]:
            self.index.replace(worker, [delta(held)])
            self.naive.replace(worker, {GPU: held})

    @rule(worker=st.sampled_from(_FLEET), begin=st.integers(1, 399), owner=_owners)
    def expect(self, worker, begin, owner):
        wanted = list(range(begin, min(begin + 50, 400)))
        self.index.expect(worker, keys(*wanted), 1.0, owner)
        self.naive.expect(worker, wanted, 1.0, owner)

    @rule(begin=st.integers(1, 399))
    def ask(self, begin):
        asked = list(range(begin, 400))
        assert self.index.leading(keys(*asked)) == self.naive.leading(asked)

    @rule()
    def clean(self):
        while self.index.clean(1000):
            pass
        residencies = {key for worker in self.naive.held for key in self.naive.held[worker].get(GPU, ())}
        assert self.index.stats().blocks == len(residencies)

    @invariant()
    def agrees(self):
        self.index.check_integrity()
        assert self.index.stats().residencies == sum(self.naive.num_blocks(w) for w in self.naive.held)


TestIndexAgainstOracle = IndexAgainstOracle.TestCase
TestIndexAgainstOracle.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
TestCompiledIndexAgainstOracle = CompiledIndexAgainstOracle.TestCase
TestCompiledIndexAgainstOracle.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
TestFleetAgainstOracle = FleetAgainstOracle.TestCase
TestFleetAgainstOracle.settings = settings(deadline=None, max_examples=12, stateful_step_count=20)


def test_a_spent_memory_budget_refuses_blocks_by_name_and_goes_on(caplog):
    index = CompiledIndex(memory_bytes=CompiledIndex().stats().memory_bytes + 40_000)
    index.apply(A, delta(range(1, 10_000)))
    stats = index.stats()
    assert stats.refused_stores and stats.residencies + stats.refused_stores == 9_999
    assert index.num_blocks(A) == stats.residencies
    assert "index_full" in caplog.text
    index.check_integrity()
    index.apply(A, delta(removed=range(1, 10_000)))
    index.apply(A, delta(range(1, 100)))
    assert index.num_blocks(A) == 99


def test_a_lane_is_given_again_only_when_nothing_of_its_worker_is_left():
    index = CompiledIndex(num_segments=2)
    index.apply(A, delta(range(1, 100)))
    for round_number in range(300):
        index.forget(A if round_number % 2 == 0 else B)
        index.apply(B if round_number % 2 == 0 else A, delta([1000 + round_number]))
        assert index.stats().residencies == 1
        assert sum(leading.confirmed for leading in index.leading(keys(1, 2)).values()) == 0
    while index.clean(1000):
        pass
    assert index.stats().blocks == 1
    index.check_integrity()


def test_more_workers_than_lanes_are_refused_by_name():
    index = CompiledIndex(num_segments=2, max_workers=2)
    index.apply(A, delta([1]))
    index.apply(B, delta([1]))
    with pytest.raises(TooManyWorkers, match="at most 2 workers"):
        index.apply(C, delta([1]))
    index.check_integrity()
    index.forget(A)
    index.apply(C, delta([1]))
    assert index.workers() == {B, C}

"""The block index in compiled tables: some 30 bytes a block, and no Python object for any.

A table per tier (KV cache group and medium) maps a key to the lanes that hold it. A worker has a slot for
its life and a lane for the life of its table: a new table gets a new lane, and the old one is taken out of
the tables slice by slice (`router.lanes`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from router.expectations import Expectations
from router.index import CREDIT_TIER, BlockIndex, CountArray, IndexStats, KeyArray, Match
from router.kernels import matching, rows
from router.lanes import Lanes
from router.slots import Slots
from router.tables import HolderTable, MemoryBudget, sound
from sightline_types import DEFAULT_GROUP, Tier, TierDelta, WorkerId

__all__ = ["CompiledIndex"]

log = logging.getLogger("sightline.router")

#: Of a tier's table.
SEGMENTS = 1024
#: Cells looked at for lanes that were given up: at each change, and at each sweep (some milliseconds).
CELLS_A_CHANGE, CELLS_A_SWEEP = 4096, 1 << 20
#: More given up lanes than this, and than workers, are taken out at once.
MAX_GIVEN_UP = 64


class CompiledIndex(BlockIndex):
    """memory_bytes: of the tables at most; a block beyond is refused, and counted. 0 is unlimited.

    num_segments: of a tier's table, a power of two up to 2^16; each grows and shrinks alone.
    max_workers: at a time; one more is refused with `TooManyWorkers`.
    """

    def __init__(
        self, memory_bytes: int = 0, num_segments: int = SEGMENTS, max_workers: int = rows.MAX_LANES
    ) -> None:
        self._num_segments = num_segments
        self._slots = Slots()
        self._lanes = Lanes(max_workers)
        self._lane_of: dict[int, int] = {}  # by slot
        self._budget = MemoryBudget(memory_bytes)
        self._nothing = HolderTable(1, MemoryBudget())
        self._tiers = {CREDIT_TIER: HolderTable(num_segments, self._budget)}
        self._coming = Expectations()
        self._cleaning: list[int] = []
        self._to_clean: list[tuple[HolderTable, int]] = []  # a table, and the next of its segments
        self._repeated_stores = self._unknown_removals = self._refused_stores = 0

    # Residency

    def apply(self, worker: WorkerId, delta: TierDelta) -> None:
        slot = self._slot(worker)
        self._store(slot, delta.tier, _keys(delta.stored))
        self._remove(slot, delta.tier, _keys(delta.removed))
        self.clean(CELLS_A_CHANGE)

    def replace(self, worker: WorkerId, deltas: Iterable[TierDelta]) -> None:
        slot = self._slot(worker)
        if any(table.count(self._lane_of[slot]) for table in self._tiers.values()):
            self._take_another_lane(slot)
        for delta in deltas:
            self.apply(worker, delta)

    def _take_another_lane(self, slot: int) -> None:
        self._have_lane()
        old, self._lane_of[slot] = self._lane_of[slot], self._lanes.take(slot)
        self._give_up(old)

    def forget(self, worker: WorkerId) -> None:
        slot = self._slots.of(worker)
        if slot is None:
            return
        self.drop_expected_of(worker)
        self._give_up(self._lane_of.pop(slot))
        self._slots.free(worker)

    def num_blocks(self, worker: WorkerId, tier: Tier = CREDIT_TIER) -> int:
        lane = self._lane(worker)
        return self._table(tier).count(lane) if lane is not None else 0

    def held_keys(self, worker: WorkerId, tier: Tier = CREDIT_TIER) -> KeyArray:
        lane = self._lane(worker)
        keys, lanes = self._table(tier).pairs()
        return np.sort(keys[lanes == lane]) if lane is not None else np.empty(0, dtype=np.uint64)

    def sweep(self, now: float) -> None:
        self._coming.sweep(now)
        self.clean(CELLS_A_SWEEP)

    # What was put off

    def clean(self, num_cells: int) -> bool:
        """Look at about `num_cells` cells for lanes that were given up. Whether there are more to look at."""
        if not self._to_clean and self._lanes.num_given_up:
            self._cleaning = self._lanes.given_up()
            self._to_clean = [(table, 0) for table in self._tiers.values()]
        while self._to_clean and num_cells > 0:
            table, segment = self._to_clean.pop()
            segment, num_cells = table.clean(segment, num_cells, self._lanes.live)
            if segment < table.num_segments:
                self._to_clean.append((table, segment))
        if not self._to_clean:
            self._end_cleaning()
        return bool(self._to_clean or self._lanes.num_given_up)

    def _end_cleaning(self) -> None:
        if not self._cleaning:
            return
        self._lanes.free(self._cleaning)
        self._cleaning = []
        for tier in [t for t, table in self._tiers.items() if not len(table) and t != CREDIT_TIER]:
            self._tiers.pop(tier).release_memory()

    def _give_up(self, lane: int) -> None:
        for table in self._tiers.values():
            table.forget_count(lane)
        self._lanes.give_up(lane)
        while self._lanes.num_given_up + len(self._cleaning) > max(MAX_GIVEN_UP, len(self._lane_of)):
            self.clean(CELLS_A_SWEEP)

    # Questions

    def workers(self) -> set[WorkerId]:
        return self._slots.workers()

    def slot_of(self, worker: WorkerId) -> int | None:
        return self._slots.of(worker)

    def worker_at(self, slot: int) -> WorkerId | None:
        return self._slots.worker_at(slot)

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    def match(self, keys: KeyArray, group: int = DEFAULT_GROUP) -> Match:
        keys = sound(keys)
        held = np.zeros(self.num_slots, np.int32)
        table = self._tiers[CREDIT_TIER] if group == DEFAULT_GROUP else self._table(Tier(group))
        matching.match_runs.run(table.directory, keys, self._lanes.live, self._lanes.slots, held)
        expected = self._with_coming(keys, held, table) if group == DEFAULT_GROUP else held.copy()
        if len(self._tiers) == 1:
            return Match(held, expected, held)
        below = [t for t, table in self._tiers.items() if t.group == group and t.medium != CREDIT_TIER.medium]
        return Match(held, expected, self._runs(keys, [Tier(group), *below]) if below else held)

    def _with_coming(self, keys: KeyArray, held: CountArray, table: HolderTable) -> CountArray:
        """By slot, the leading keys that are each held or expected."""
        runs, reach = held.copy(), self._coming.reach(keys)
        more = [(slot, length) for slot, length in reach.items() if length > held[slot]]
        if more:
            slots, lengths = np.array(more, dtype=np.int64).T.copy()
            lanes = np.array([self._lane_of[slot] for slot, _ in more], dtype=np.int64)
            matching.lengthen_runs.run(table.directory, keys, lanes, lengths)
            runs[slots] = lengths
        return runs

    def _runs(self, keys: KeyArray, tiers: Iterable[Tier]) -> CountArray:
        counts = np.zeros(self.num_slots, dtype=np.int32)
        matching.runs_of_sets.run(self._sets(keys, tiers), self._lanes.live, self._lanes.slots, counts)
        return counts

    def presence(self, keys: KeyArray, group: int = DEFAULT_GROUP) -> npt.NDArray[np.bool_]:
        found = np.zeros((self.num_slots, len(keys)), dtype=np.bool_)
        sets = self._sets(sound(keys), [Tier(group)])
        matching.spread_sets.run(sets, self._lanes.live, self._lanes.slots, found)
        return found

    def _sets(self, keys: KeyArray, tiers: Iterable[Tier]) -> npt.NDArray[np.uint64]:
        """Of each key, the lanes that hold it in any of the tiers: shape (n, words)."""
        sets = np.zeros((len(keys), len(self._lanes.live)), dtype=np.uint64)
        for tier in tiers:
            matching.add_sets.run(self._table(tier).directory, keys, sets)
        return sets

    def stats(self) -> IndexStats:
        return IndexStats(
            workers=len(self._lane_of),
            blocks=sum(map(len, self._tiers.values())),
            residencies=sum(int(table.counts.sum()) for table in self._tiers.values()),
            expected_blocks=self._coming.total(),
            repeated_stores=self._repeated_stores,
            unknown_removals=self._unknown_removals,
            refused_stores=self._refused_stores,
            memory_bytes=self._budget.used,
        )

    def check_integrity(self) -> None:
        self._slots.check_integrity()
        self._coming.check_integrity()
        lanes = {int(lane): int(self._lanes.slots[lane]) for lane in self._lanes.in_use()}
        assert lanes == {lane: slot for slot, lane in self._lane_of.items()}, "lanes and slots disagree"
        for tier, table in self._tiers.items():
            table.check_integrity()
            held = np.bincount(table.pairs()[1], minlength=len(table.counts))
            live = [lane for lane in lanes if lane < len(held)]
            assert (held[live] == table.counts[live]).all(), f"counts of {tier} are wrong"
            assert table.counts.sum() == table.counts[live].sum(), f"{tier} counts a lost worker's"

    # Inner workings

    def _slot(self, worker: WorkerId) -> int:
        slot = self._slots.of(worker)
        if slot is None:
            self._have_lane()
            slot = self._slots.take(worker)
            self._lane_of[slot] = self._lanes.take(slot)
        return slot

    def _have_lane(self) -> None:
        while self._lanes.is_full and self.clean(CELLS_A_SWEEP):
            pass
        self._lanes.check_room()

    def _lane(self, worker: WorkerId) -> int | None:
        slot = self._slots.of(worker)
        return self._lane_of[slot] if slot is not None else None

    def _table(self, tier: Tier) -> HolderTable:
        return self._tiers.get(tier, self._nothing)

    def _store(self, slot: int, tier: Tier, keys: KeyArray) -> None:
        if not len(keys):
            return
        table = self._tiers.get(tier)
        if table is None:
            table = self._tiers[tier] = HolderTable(self._num_segments, self._budget)
        lane = self._lane_of[slot]
        stored = table.add(lane, keys)
        self._repeated_stores += stored.repeated
        if stored.refused:
            self._refuse(stored.refused)

    def _refuse(self, count: int) -> None:
        if not self._refused_stores:
            log.warning("index_full: %d bytes are taken, further blocks earn no credit", self._budget.used)
        self._refused_stores += count

    def _remove(self, slot: int, tier: Tier, keys: KeyArray) -> None:
        if not len(keys):
            return
        table = self._tiers.get(tier)
        dropped = table.drop(self._lane_of[slot], keys) if table is not None else 0
        self._unknown_removals += len(keys) - dropped
        if table is None or tier == CREDIT_TIER or self._to_clean or table.counts.any():
            return
        if not len(table):
            self._tiers.pop(tier).release_memory()


def _keys(packed: bytes) -> KeyArray:
    return sound(np.frombuffer(packed, dtype=np.uint64))

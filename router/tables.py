"""The compiled tables' owners: they hold the memory, and see to what a kernel needs.

Each segment of a table is a numpy array that grows and shrinks alone, so the longest step is one
segment's: with 16 M blocks some 16,000 cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from router.index import KeyArray
from router.kernels import cells, holders, rows
from router.kernels.cells import CAPACITY, DONE, NEED, REFUSED, SEGMENT, USED

__all__ = [
    "CellTable",
    "HolderTable",
    "MemoryBudget",
    "Stored",
    "sound",
]

#: Share of the allowed cells that is used after a segment was made anew.
FRESH_FILL = 0.65
#: Rows are packed when the arena is made anew; so much more room is made.
ARENA_ROOM = 1.2
NOTHING = np.empty(0, dtype=np.uint64)


@dataclass(slots=True)
class MemoryBudget:
    """limit: bytes; 0 is unlimited."""

    limit: int = 0
    used: int = 0

    def would_exceed(self, more: int) -> bool:
        return bool(self.limit) and more > 0 and self.used + more > self.limit


class Stored(NamedTuple):
    """What became of a call's keys."""

    added: int
    repeated: int
    refused: int


def sound(keys: KeyArray) -> KeyArray:
    """The same keys as the kernels take them: one after the other, at whole words."""
    flags = keys.flags
    return keys if flags.c_contiguous and flags.aligned else np.array(keys, dtype=np.uint64)


class CellTable:
    """The memory of one table; see `router.kernels.cells`.

    num_segments: a power of two.
    """

    def __init__(self, num_segments: int, budget: MemoryBudget) -> None:
        self.directory = np.zeros((num_segments, cells.NUM_FIELDS), dtype=np.int64)
        self._budget = budget
        self._cells = [NOTHING] * num_segments
        self._arenas = [NOTHING] * num_segments
        self._report = np.zeros(cells.NUM_REPORTS, dtype=np.int64)
        budget.used += self.directory.nbytes

    def __len__(self) -> int:
        """Cells in use."""
        return int(self.directory[:, USED].sum())

    @property
    def num_segments(self) -> int:
        return len(self._cells)

    def _begin(self) -> npt.NDArray[np.int64]:
        self._report[:] = 0
        return self._report

    def _meet(self, *, grows: bool) -> bool:
        """See to the need that a kernel reported. False where the budget does not allow it."""
        need, segment = int(self._report[NEED]), int(self._report[SEGMENT])
        self._report[NEED] = cells.NEEDS_NOTHING
        if need == cells.NEEDS_CELLS:
            return self._renew_cells(segment, grows=grows)
        return self._renew_arena(segment, int(self._report[cells.ROW_WORDS]) if grows else 0)

    def _renew_cells(self, segment: int, *, grows: bool) -> bool:
        used, capacity = self.directory[segment, [USED, CAPACITY]].tolist()
        wanted = max(cells.LEAST, int((used + 1) * cells.SIXTEENTHS / (FRESH_FILL * cells.FILL)) + 1)
        wanted = wanted if grows else min(capacity, wanted)
        fresh = self._allocate(2 * wanted, self._cells[segment])
        if fresh is None:
            return False
        cells.move_cells.run(self.directory, segment, fresh.ctypes.data, wanted)
        self._cells[segment] = fresh
        return True

    def _renew_arena(self, segment: int, more_words: int) -> bool:
        live = int(self.directory[segment, cells.ARENA_LIVE])
        wanted = max(holders.MIN_ARENA_WORDS, int(live * ARENA_ROOM) + more_words)
        fresh = self._allocate(wanted, self._arenas[segment])
        if fresh is None:
            return False
        rows.move_rows.run(self.directory, segment, fresh.ctypes.data, wanted)
        self._arenas[segment] = fresh
        return True

    def _allocate(self, num_words: int, instead_of: KeyArray) -> KeyArray | None:
        more = 8 * num_words - instead_of.nbytes
        if self._budget.would_exceed(more):
            return None
        self._budget.used += more
        return np.zeros(num_words, dtype=np.uint64)

    def release_memory(self) -> None:
        """Give the budget back what this table took; it must not be used after."""
        arrays = [self.directory, *self._cells, *self._arenas]
        self._budget.used -= sum(array.nbytes for array in arrays)

    def check_integrity(self) -> None:
        """Raise AssertionError where a cell is not found, or the memory is not what the directory says."""
        assert len(self._cells) == len(self._arenas) == self.directory.shape[0], "segments lost"
        for segment in np.flatnonzero(self.directory[:, [CAPACITY, cells.ARENA_WORDS]].any(axis=1)).tolist():
            own, arena = self._cells[segment], self._arenas[segment]
            keys = own[::2]
            assert len(keys) == self.directory[segment, CAPACITY], "cells lost"
            assert np.count_nonzero(keys) == self.directory[segment, USED], "cells counted wrongly"
            assert len(arena) == self.directory[segment, cells.ARENA_WORDS], "arena lost"
            assert not cells.count_misplaced.run(self.directory, segment), "cells misplaced"
            assert own.ctypes.data == self.directory[segment, cells.CELLS] or not len(own)


class HolderTable(CellTable):
    """Key to the set of lanes that hold it. counts: keys by lane, shape (lanes,)."""

    def __init__(self, num_segments: int, budget: MemoryBudget) -> None:
        super().__init__(num_segments, budget)
        self.counts = np.zeros(64, dtype=np.int64)

    def add(self, lane: int, keys: KeyArray) -> Stored:
        """`lane` holds `keys`; what the memory budget does not allow is refused."""
        report, at, refuses = self._begin(), 0, 0
        self._make_room(lane)
        while True:
            at = holders.add_keys.run(self.directory, lane, keys, at, refuses, report)
            if not report[NEED]:
                break
            refuses = 0 if self._meet(grows=True) else 1
        added, repeated, refused = report[: REFUSED + 1].tolist()
        self.counts[lane] += added
        return Stored(added, repeated, refused)

    def drop(self, lane: int, keys: KeyArray) -> int:
        """`lane` holds `keys` no longer; how many it had held."""
        report, at = self._begin(), 0
        while True:
            at = holders.drop_keys.run(self.directory, lane, keys, at, report)
            if not report[NEED]:
                break
            self._meet(grows=False)
        dropped = int(report[DONE])
        if dropped:
            self.counts[lane] -= dropped
        return dropped

    def count(self, lane: int) -> int:
        return int(self.counts[lane]) if lane < len(self.counts) else 0

    def missing(self, lane: int, keys: KeyArray) -> KeyArray:
        """Those of `keys` that `lane` does not hold, in order."""
        if not self.count(lane):
            return keys
        missing = np.empty(len(keys), dtype=np.bool_)
        holders.missing_keys.run(self.directory, lane, keys, missing)
        return keys[missing]

    def forget_count(self, lane: int) -> None:
        if lane < len(self.counts):
            self.counts[lane] = 0

    def clean(self, first: int, num_cells: int, live: npt.NDArray[np.uint64]) -> tuple[int, int]:
        """Take lanes that are not in `live` out of the segments from `first` on, about `num_cells` cells.

        Returns the next segment, and how many cells are left of `num_cells`.
        """
        report = self._begin()
        while first < self.num_segments and num_cells > 0:
            begin = first
            first = holders.clean_segments.run(self.directory, first, num_cells, live, report)
            num_cells -= int(self.directory[begin:first, CAPACITY].sum()) + first - begin
            if report[NEED]:
                self._after_cleaning(int(report[SEGMENT]))
        return first, num_cells

    def _after_cleaning(self, segment: int) -> None:
        self._meet(grows=False)
        live, words = (int(self.directory[segment, f]) for f in (cells.ARENA_LIVE, cells.ARENA_WORDS))
        if 4 * live < words:
            self._renew_arena(segment, 0)

    def _make_room(self, lane: int) -> None:
        if lane >= len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(lane + 1, dtype=np.int64)])

    def pairs(self) -> tuple[KeyArray, npt.NDArray[np.int64]]:
        """Every (key, lane), as two arrays. Walks the whole table."""
        parts = [self._pairs_of(segment) for segment in range(self.num_segments) if len(self._cells[segment])]
        keys = [NOTHING, *(part[0] for part in parts)]
        return np.concatenate(keys), np.concatenate([np.empty(0, np.int64), *(part[1] for part in parts)])

    def _pairs_of(self, segment: int) -> tuple[KeyArray, npt.NDArray[np.int64]]:
        num_words = rows.MAX_LANES // 64
        keys, lanes = NOTHING, np.empty(0, dtype=np.int64)
        count = holders.list_holders.run(self.directory, segment, keys, lanes, num_words)
        keys, lanes = np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.int64)
        holders.list_holders.run(self.directory, segment, keys, lanes, num_words)
        return keys, lanes

    def check_integrity(self) -> None:
        super().check_integrity()
        for segment in np.flatnonzero(self.directory[:, CAPACITY]).tolist():
            payloads = self._cells[segment][1::2]
            classes = (payloads[payloads >> np.uint64(56) != 0] >> np.uint64(48)).astype(int) - 256
            assert (1 << classes).sum() == self.directory[segment, cells.ARENA_LIVE], "rows lost"

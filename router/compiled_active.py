"""Active blocks in compiled tables."""

from __future__ import annotations

import numpy as np

from router.active import ActiveBlocks
from router.index import CountArray, KeyArray
from router.tables import REFERENCE_SEGMENTS, ReferenceTable, sound

__all__ = ["CompiledActiveBlocks"]


class CompiledActiveBlocks(ActiveBlocks):
    """References by (slot, key); a slot is the table's lane. Some 40 bytes a block, 90 with sets by key."""

    def __init__(self, num_segments: int = REFERENCE_SEGMENTS) -> None:
        self._table = ReferenceTable(num_segments)

    def acquire(self, slot: int, keys: KeyArray) -> int:
        return self._table.acquire(slot, sound(keys))[0]

    def release(self, slot: int, keys: KeyArray) -> int:
        return self._table.release(slot, sound(keys))

    def count(self, slot: int) -> int:
        return self._table.count(slot)

    def counts(self, num_slots: int) -> CountArray:
        known = self._table.counts[:num_slots].astype(np.int32)
        return np.concatenate([known, np.zeros(num_slots - len(known), dtype=np.int32)])

    def would_add(self, keys: KeyArray, num_slots: int) -> CountArray:
        return np.int32(len(keys)) - self._table.lane_counts(sound(keys), num_slots)

    def check_integrity(self) -> None:
        self._table.check_integrity()

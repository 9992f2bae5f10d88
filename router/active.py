"""Which blocks the requests under way on each slot use: shared ones once, each counted by its requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from router.index import CountArray, KeyArray

__all__ = ["ActiveBlocks", "PlainActiveBlocks"]


class ActiveBlocks(ABC):
    """References to blocks by (slot, key). Key arrays have shape (n,), uint64.

    What was acquired is released with the same keys. One owner reads and changes it.
    """

    @abstractmethod
    def acquire(self, slot: int, keys: KeyArray) -> int:
        """One more reference to each of `keys` (to a repeated one: one each time). How many were not
        active at `slot` before."""

    @abstractmethod
    def release(self, slot: int, keys: KeyArray) -> int:
        """One reference less to each of `keys`; one that has none is passed over. How many are no longer
        active at `slot`."""

    @abstractmethod
    def count(self, slot: int) -> int:
        """Distinct active blocks at `slot`."""

    @abstractmethod
    def counts(self, num_slots: int) -> CountArray:
        """`count` by slot, shape (num_slots,)."""

    @abstractmethod
    def would_add(self, keys: KeyArray, num_slots: int) -> CountArray:
        """By slot, how many of `keys` (without repeats) are not active there; shape (num_slots,)."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError where the tables contradict each other."""


@dataclass(slots=True)
class PlainActiveBlocks(ActiveBlocks):
    """The same in dictionaries: the oracle and the fallback."""

    _references: dict[int, Counter[int]] = field(default_factory=dict)  # by slot, never empty

    def acquire(self, slot: int, keys: KeyArray) -> int:
        references = self._references.setdefault(slot, Counter())
        before = len(references)
        references.update(keys.tolist())
        if not references:
            del self._references[slot]
        return len(references) - before

    def release(self, slot: int, keys: KeyArray) -> int:
        references = self._references.get(slot)
        if references is None:
            return 0
        before = len(references)
        for key in keys.tolist():
            if references[key] > 1:
                references[key] -= 1
            else:
                del references[key]
        if not references:
            del self._references[slot]
        return before - len(references)

    def count(self, slot: int) -> int:
        return len(self._references.get(slot, ()))

    def counts(self, num_slots: int) -> CountArray:
        return np.array([self.count(slot) for slot in range(num_slots)], dtype=np.int32)

    def would_add(self, keys: KeyArray, num_slots: int) -> CountArray:
        asked = set(keys.tolist())
        known = (self._references.get(slot, Counter()) for slot in range(num_slots))
        return np.array([len(asked - active.keys()) for active in known], dtype=np.int32)

    def check_integrity(self) -> None:
        for slot, references in self._references.items():
            assert references, f"slot {slot} is kept without blocks"
            assert min(references.values()) > 0, f"slot {slot} has blocks without references"

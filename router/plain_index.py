"""The block index in plain Python: the oracle of the compiled one, and its fallback.

A worker has a slot, one bit in the masks; a key maps to the mask of the workers that hold it, in a
table per tier (KV cache group and medium).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from router.expectations import Expectations
from router.index import CREDIT_TIER, BlockIndex, CountArray, IndexStats, KeyArray, Match
from sightline_types import DEFAULT_GROUP, Tier, TierDelta, WorkerId

__all__ = ["PlainIndex"]


@dataclass(slots=True)
class _TierTable:
    """masks: by key, never 0. held: keys by slot, never 0."""

    masks: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class PlainIndex(BlockIndex):
    """Residency in dictionaries of bit masks: about 250 bytes a block."""

    _slots: dict[WorkerId, int] = field(default_factory=dict)
    _free_slots: list[int] = field(default_factory=list)
    _at: list[WorkerId | None] = field(default_factory=list)  # by slot
    _tiers: dict[Tier, _TierTable] = field(default_factory=dict)
    _coming: Expectations = field(default_factory=Expectations)
    _repeated_stores: int = 0
    _unknown_removals: int = 0

    # Residency

    def apply(self, worker: WorkerId, delta: TierDelta) -> None:
        """Take over what one tier of `worker` gained and lost."""
        slot = self._slot(worker)
        self._store(slot, delta.tier, _keys(delta.stored))
        self._remove(slot, delta.tier, _keys(delta.removed))

    def replace(self, worker: WorkerId, deltas: Iterable[TierDelta]) -> None:
        """`deltas` are all that `worker` holds; what it held before is dropped, what is expected stays."""
        self._clear(self._slot(worker))
        for delta in deltas:
            self.apply(worker, delta)

    def forget(self, worker: WorkerId) -> None:
        """Drop everything of `worker`; its slot may go to another. An unknown worker changes nothing."""
        slot = self._slots.get(worker)
        if slot is None:
            return
        self.drop_expected_of(worker)
        self._clear(slot)
        del self._slots[worker]
        self._at[slot] = None
        self._free_slots.append(slot)

    def num_blocks(self, worker: WorkerId, tier: Tier = CREDIT_TIER) -> int:
        """Blocks that `worker` holds in one tier."""
        table, slot = self._tiers.get(tier), self._slots.get(worker)
        return table.held.get(slot, 0) if table is not None and slot is not None else 0

    def held_keys(self, worker: WorkerId, tier: Tier = CREDIT_TIER) -> KeyArray:
        """All keys of `worker` in one tier, ascending. Walks the whole tier: not for decisions."""
        table, slot = self._tiers.get(tier), self._slots.get(worker)
        if table is None or slot is None:
            return np.empty(0, dtype=np.uint64)
        return np.array(sorted(key for key, mask in table.masks.items() if mask >> slot & 1), dtype=np.uint64)

    def sweep(self, now: float) -> None:
        self._coming.sweep(now)

    # Questions

    def workers(self) -> set[WorkerId]:
        return set(self._slots)

    def slot_of(self, worker: WorkerId) -> int | None:
        return self._slots.get(worker)

    def worker_at(self, slot: int) -> WorkerId | None:
        return self._at[slot] if 0 <= slot < len(self._at) else None

    @property
    def num_slots(self) -> int:
        return len(self._at)

    def match(self, keys: KeyArray, group: int = DEFAULT_GROUP) -> Match:
        masks = [table.masks for tier, table in self._tiers.items() if tier.group == group]
        held = self._masks(Tier(group))
        reach = self._coming.reach(keys) if group == DEFAULT_GROUP else {}
        asked = [*enumerate(keys.tolist())]
        return Match(
            held=self._run(asked, lambda block, key: held.get(key, 0)),
            expected=self._run(asked, lambda block, key: held.get(key, 0) | _beyond(reach, block)),
            lower=self._run(asked, lambda block, key: _union(masks, key)),
        )

    def _run(self, keys: Sequence[tuple[int, int]], have: Callable[[int, int], int]) -> CountArray:
        """By slot, how many leading `keys` have the slot's bit in `have` of their place and themselves."""
        counts = np.zeros(self.num_slots, dtype=np.int32)
        left = sum(1 << slot for slot in self._slots.values())
        for block, key in keys:
            still = left & have(block, key)
            for slot in _bits(left ^ still):
                counts[slot] = block
            left = still
            if not left:
                return counts
        for slot in _bits(left):
            counts[slot] = len(keys)
        return counts

    def presence(self, keys: KeyArray, group: int = DEFAULT_GROUP) -> npt.NDArray[np.bool_]:
        masks = self._masks(Tier(group))
        found = np.zeros((self.num_slots, len(keys)), dtype=np.bool_)
        for block, key in enumerate(keys.tolist()):
            for slot in _bits(masks.get(key, 0)):
                found[slot, block] = True
        return found

    def stats(self) -> IndexStats:
        return IndexStats(
            workers=len(self._slots),
            blocks=sum(len(table.masks) for table in self._tiers.values()),
            residencies=sum(sum(table.held.values()) for table in self._tiers.values()),
            expected_blocks=self._coming.total(),
            repeated_stores=self._repeated_stores,
            unknown_removals=self._unknown_removals,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where the tables contradict each other."""
        slots = sorted([*self._slots.values(), *self._free_slots])
        assert slots == list(range(len(slots))), "slots are lost or given twice"
        at = {worker: slot for slot, worker in enumerate(self._at) if worker is not None}
        assert at == self._slots and len(self._at) == len(slots), "slots and workers disagree"
        live = sum(1 << slot for slot in self._slots.values())
        for tier, table in self._tiers.items():
            assert table.masks, f"empty table of {tier} kept"
            assert table.held == _count(table.masks), f"counts of {tier} are wrong"
            assert not any(mask & ~live for mask in table.masks.values()), f"{tier} names a lost worker"
        self._coming.check_integrity()

    # Inner workings

    def _slot(self, worker: WorkerId) -> int:
        slot = self._slots.get(worker)
        if slot is None:
            slot = self._slots[worker] = self._free_slots.pop() if self._free_slots else len(self._slots)
            self._at[slot:] = [worker, *self._at[slot + 1 :]]
        return slot

    def _masks(self, tier: Tier) -> dict[int, int]:
        table = self._tiers.get(tier)
        return table.masks if table is not None else {}

    def _store(self, slot: int, tier: Tier, keys: Sequence[int]) -> None:
        if not keys:
            return
        table = self._tiers.setdefault(tier, _TierTable())
        masks, bit, added = table.masks, 1 << slot, 0
        for key in keys:
            mask = masks.get(key, 0)
            if not mask & bit:
                masks[key] = mask | bit
                added += 1
        if added:
            table.held[slot] = table.held.get(slot, 0) + added
        self._repeated_stores += len(keys) - added

    def _remove(self, slot: int, tier: Tier, keys: Sequence[int]) -> None:
        table = self._tiers.get(tier)
        if table is None:
            self._unknown_removals += len(keys)
            return
        removed = sum(_drop_bit(table.masks, key, 1 << slot) for key in keys)
        self._unknown_removals += len(keys) - removed
        self._uncount(tier, table, slot, removed)

    def _clear(self, slot: int) -> None:
        for tier, table in list(self._tiers.items()):
            if slot in table.held:
                bit = 1 << slot
                for key in [key for key, mask in table.masks.items() if mask & bit]:
                    _drop_bit(table.masks, key, bit)
                self._uncount(tier, table, slot, table.held[slot])

    def _uncount(self, tier: Tier, table: _TierTable, slot: int, removed: int) -> None:
        if not removed:
            return
        table.held[slot] -= removed
        if not table.held[slot]:
            del table.held[slot]
        if not table.masks:
            del self._tiers[tier]


def _keys(packed: bytes) -> list[int]:
    keys: list[int] = np.frombuffer(packed, dtype="<u8").tolist()
    return keys


def _drop_bit(masks: dict[int, int], key: int, bit: int) -> bool:
    """Whether the bit was set; a mask that becomes 0 goes."""
    mask = masks.get(key, 0)
    if not mask & bit:
        return False
    if mask == bit:
        del masks[key]
    else:
        masks[key] = mask ^ bit
    return True


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _beyond(reach: dict[int, int], block: int) -> int:
    """The mask of the slots that reach beyond `block`."""
    return sum(1 << slot for slot, length in reach.items() if length > block)


def _union(masks: Iterable[dict[int, int]], key: int) -> int:
    union = 0
    for table in masks:
        union |= table.get(key, 0)
    return union


def _count(masks: dict[int, int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for mask in masks.values():
        for slot in _bits(mask):
            counts[slot] = counts.get(slot, 0) + 1
    return counts

"""Which worker holds which block: residency as the workers report it, and blocks expected to come.

The contract of the block index. It is kept twice: `router.plain_index` (Python objects, the oracle, and
the fallback where numba is missing) and `router.compiled_index`; `router.structures` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from router.chains import CountArray, KeyArray
from router.expectations import Expectations
from sightline_types import DEFAULT_GROUP, DecisionId, Tier, TierDelta, WorkerId

__all__ = ["CREDIT_TIER", "BlockIndex", "CountArray", "IndexStats", "KeyArray", "Leading", "Match"]

#: The tier that earns credit: the first cache group, on the GPU.
CREDIT_TIER = Tier()


class Leading(NamedTuple):
    """How many leading blocks of a request a worker has.

    confirmed: held, by events. expected: each one held, or among the first that a request under way there
    uses or brings; never less than `confirmed`.
    """

    confirmed: int = 0
    expected: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """How many leading blocks of a request each slot has; 0 at a slot that is no worker's.

    held: on the GPU, by events. expected: each one held or expected there. lower: each one held on the
    GPU or in any other medium. Neither is less than `held`. All of shape (num_slots,), int32, blocks.
    """

    held: CountArray
    expected: CountArray
    lower: CountArray


@dataclass(frozen=True, slots=True)
class IndexStats:
    """blocks: distinct (tier, key). residencies: (worker, tier, key). expected_blocks: (worker, key).

    repeated_stores, unknown_removals: harmless contradictions since the index was made.
    refused_stores: blocks not taken because the memory budget was spent (`index_full`); they earn nothing.
    memory_bytes: of the tables; 0 where they are Python's own.
    """

    workers: int
    blocks: int
    residencies: int
    expected_blocks: int
    repeated_stores: int
    unknown_removals: int
    refused_stores: int = 0
    memory_bytes: int = 0


class BlockIndex(ABC):
    """Residency per (worker, tier, key). Not safe for threads: one owner reads and changes it.

    A worker has a slot from the first time it is named until it is forgotten; then the slot may go to
    another. Key arrays have shape (n,), uint64, and are not changed.
    """

    # Residency

    @abstractmethod
    def apply(self, worker: WorkerId, delta: TierDelta) -> None:
        """Take over what one tier of `worker` gained and lost."""

    @abstractmethod
    def replace(self, worker: WorkerId, deltas: Iterable[TierDelta]) -> None:
        """`deltas` are all that `worker` holds; what it held before is dropped, what is expected stays,
        and so does the worker's slot."""

    @abstractmethod
    def forget(self, worker: WorkerId) -> None:
        """Drop everything of `worker`; its slot may go to another. An unknown worker changes nothing."""

    @abstractmethod
    def num_blocks(self, worker: WorkerId, tier: Tier = CREDIT_TIER) -> int:
        """Blocks that `worker` holds in one tier."""

    @abstractmethod
    def held_keys(self, worker: WorkerId, tier: Tier = CREDIT_TIER) -> KeyArray:
        """All keys of `worker` in one tier, ascending. Walks the whole tier: not for decisions."""

    # Expected blocks

    _coming: Expectations

    @abstractmethod
    def _slot(self, worker: WorkerId) -> int:
        """The worker's slot; it is given one where it has none."""

    def expect(self, worker: WorkerId, keys: KeyArray, expires_at: float, owner: DecisionId) -> None:
        """The request of `owner` uses or brings `keys`, from its first block on, on `worker`. Replaces what
        `owner` expected before."""
        self._coming.expect(owner, self._slot(worker), keys, expires_at)

    def drop_expected(self, owner: DecisionId) -> None:
        """Nothing more will come of this decision. Idempotent."""
        self._coming.drop(owner)

    def drop_expected_of(self, worker: WorkerId) -> None:
        """Nothing that was expected of `worker` will come."""
        slot = self.slot_of(worker)
        if slot is not None:
            self._coming.drop_slot(slot)

    def trim_expected(self, worker: WorkerId, max_blocks: int) -> None:
        """Drop the oldest decisions' entries until at most `max_blocks` are expected of `worker`."""
        slot = self.slot_of(worker)
        if slot is not None:
            self._coming.trim(slot, max_blocks)

    def num_expected(self, worker: WorkerId) -> int:
        """Distinct blocks expected of `worker`, those that have come included."""
        slot = self.slot_of(worker)
        return self._coming.count(slot) if slot is not None else 0

    @abstractmethod
    def sweep(self, now: float) -> None:
        """Drop the expected entries whose time is over, and do a bounded slice of what was put off."""

    # Questions

    @abstractmethod
    def workers(self) -> set[WorkerId]:
        """Those that have a slot."""

    @abstractmethod
    def slot_of(self, worker: WorkerId) -> int | None:
        """The worker's place in the arrays of a `Match`; None where it is unknown."""

    @abstractmethod
    def worker_at(self, slot: int) -> WorkerId | None:
        """Whose slot it is; None where it is free."""

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """Length of arrays by slot: more than any slot given so far. Grows, and never shrinks."""

    @abstractmethod
    def match(self, keys: KeyArray, group: int = DEFAULT_GROUP) -> Match:
        """How many of the leading `keys` each worker has in one cache group; one pass for all of them.

        Expected blocks are the first group's; in another, `expected` is `held`.
        """

    @abstractmethod
    def presence(self, keys: KeyArray, group: int = DEFAULT_GROUP) -> npt.NDArray[np.bool_]:
        """Which of `keys` each slot holds on the GPU: shape (num_slots, n). For groups in which other
        blocks than the leading ones decide."""

    @abstractmethod
    def stats(self) -> IndexStats:
        """Counts over all workers and tiers."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError where the tables contradict each other."""

    def leading(self, keys: KeyArray) -> dict[WorkerId, Leading]:
        """`match` by worker, for those who look at few of them."""
        match = self.match(keys)
        slots = {worker: self.slot_of(worker) for worker in self.workers()}
        return {
            worker: Leading(int(match.held[slot]), int(match.expected[slot]))
            for worker, slot in slots.items()
            if slot is not None
        }
